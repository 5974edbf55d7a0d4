-- Names that must be quoted, in tables, columns and schemas.
CREATE TABLE "Mixed Case ""Quoted""" ("Id" int PRIMARY KEY, "a.b" text, "back`tick" text, "select" int, "ünïcode" text);
CREATE SCHEMA "odd schema";
CREATE TABLE "odd schema"."select" ("from" int PRIMARY KEY, "where" text);
INSERT INTO "odd schema"."select" VALUES (1, 'one');

--- step
INSERT INTO "Mixed Case ""Quoted""" VALUES (1, 'x', 'y', 3, 'ö'), (2, 'it''s', E'tab\t', 4, E'line\nbreak');

INSERT INTO "odd schema"."select" VALUES (2, 'two');

--- step
UPDATE "Mixed Case ""Quoted""" SET "a.b" = 'z' WHERE "Id" = 1;

DELETE FROM "odd schema"."select" WHERE "from" = 1;
