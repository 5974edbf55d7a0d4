"""A table with name, columns, keys, values and defaults in the form of Spark SQL variables, and worse."""

from __future__ import annotations

from typing import Final

HOSTILE: Final = "dollar${env:HOME}"

WINDOWS: Final = [
    [
        'CREATE TABLE "dollar${env:HOME}" (id text PRIMARY KEY, "x${y}" text, note text)',
        """INSERT INTO "dollar${env:HOME}" VALUES ('${env:HOME}', '${spark.app.name}', 'a'),
           ('${x}', '${env:PATH}', 'b'), ('$', '''$''{{\\', '--;/*'), ('\U0001f642', E'\\x01\u202e', '${')""",
    ],
    [
        """ALTER TABLE "dollar${env:HOME}" ADD template text
           DEFAULT 'Hello ${user}, ${env:HOME} ${spark.app.name}'""",
        """UPDATE "dollar${env:HOME}" SET note = '${system:user.name}' WHERE id = '${env:HOME}'""",
    ],
    [
        """UPDATE "dollar${env:HOME}" SET id = '${env:PATH}' WHERE id = '${x}'""",
        """ALTER TABLE "dollar${env:HOME}" RENAME "x${y}" TO "${env:HOME}\"""",
        """DELETE FROM "dollar${env:HOME}" WHERE id = '$'""",
    ],
]
"""The windows of the table, each a list of transactions."""
