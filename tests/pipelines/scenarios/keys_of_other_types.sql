-- Composite, uuid and text keys, under names that must be quoted; text that looks like NULL, like JSON, like CSV.
CREATE TABLE "Mixed Case ""Quoted""" ("a.b" text, "Id" bigint, "ünïcode" text, "back`tick" text, PRIMARY KEY ("a.b", "Id"));
CREATE SCHEMA "odd schema";
CREATE TABLE "odd schema"."select" ("from" text PRIMARY KEY, "where" int);
CREATE TABLE by_uuid (id uuid PRIMARY KEY, n int);
CREATE TABLE only_a_key (id numeric(10,4) PRIMARY KEY);
INSERT INTO "Mixed Case ""Quoted""" SELECT 't' || i % 3, i, 'n', E'tab\t' FROM generate_series(1, 30) i;
INSERT INTO by_uuid SELECT md5(i::text)::uuid, i FROM generate_series(1, 30) i;
INSERT INTO "odd schema"."select" VALUES ('', 0), (' ', 1), ('NULL', 2), ('é', 3), ('e', 4), ('E', 5), (E'a,b"c\\d\n\t', 6), ('\N', 7);
INSERT INTO only_a_key VALUES (0), (-1.5), (99999.9999);

--- step
UPDATE "Mixed Case ""Quoted""" SET "a.b" = 'x' WHERE "Id" < 5;

DELETE FROM "Mixed Case ""Quoted""" WHERE "a.b" = 't1';

UPDATE by_uuid SET n = -n WHERE n < 10;

UPDATE "odd schema"."select" SET "where" = "where" + 10;

UPDATE only_a_key SET id = id + 0.0001;

--- step
UPDATE "Mixed Case ""Quoted""" SET "Id" = "Id" + 1000, "ünïcode" = NULL, "back`tick" = E'line\nbreak ''' WHERE "a.b" = 'x';

DELETE FROM "odd schema"."select" WHERE "from" = '';

UPDATE "odd schema"."select" SET "from" = 'null' WHERE "from" = 'NULL';
