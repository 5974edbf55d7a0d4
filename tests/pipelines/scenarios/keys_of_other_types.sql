-- Composite, uuid, text, numeric and char(n) keys; 1 and 1.0 are one key, and so are 'a' and 'a  '. Under names that must be quoted; text that looks like NULL, like JSON, like CSV.
CREATE TABLE "Mixed Case ""Quoted""" ("a.b" text, "Id" bigint, "ünïcode" text, "back`tick" text, PRIMARY KEY ("a.b", "Id"));
CREATE SCHEMA "odd schema";
CREATE TABLE "odd schema"."select" ("from" text PRIMARY KEY, "where" int);
CREATE TABLE by_uuid (id uuid PRIMARY KEY, n int);
CREATE TABLE only_a_key (id numeric(10,4) PRIMARY KEY);
CREATE TABLE by_number (id numeric PRIMARY KEY, code char(5), big text STORAGE EXTERNAL);
CREATE TABLE by_number_full (LIKE by_number INCLUDING ALL);
ALTER TABLE by_number_full REPLICA IDENTITY FULL;
CREATE TABLE by_char (code char(5), free bpchar, n numeric(45,3) NOT NULL, PRIMARY KEY (code, free));
INSERT INTO by_number SELECT i, 'c' || i, repeat('big', 3000) FROM generate_series(1, 12) i;
INSERT INTO by_number VALUES (1e19, 'x', NULL), (-0.5, '', 'y'), (1e-18, NULL, 'z');
INSERT INTO by_number_full SELECT * FROM by_number;
INSERT INTO by_char VALUES ('a', 'b', 1), ('', '', 2), ('a c', 'b ', 3), (' a', 'c  ', 12345678901234567890.5);
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

UPDATE by_number SET id = id::text::numeric(10,2) WHERE id IN (1, 2, 3);
UPDATE by_number_full SET id = id::text::numeric(10,2) WHERE id IN (1, 2, 3);

UPDATE by_number SET id = 4.0, code = 'moved' WHERE id = 4;
UPDATE by_number SET id = 1.000, code = '1' WHERE id = 1;
UPDATE by_number_full SET id = 4.0, code = 'moved' WHERE id = 4;
UPDATE by_number_full SET id = 1.000, code = '1' WHERE id = 1;

DELETE FROM by_number WHERE id = 5.000;
DELETE FROM by_number_full WHERE id = 5.000;
INSERT INTO by_number VALUES (5.00, 'again', 'new');
INSERT INTO by_number_full VALUES (5.00, 'again', 'new');

UPDATE by_number SET id = 60.0 WHERE id = 6;
UPDATE by_number SET id = 60 WHERE id = 60;
UPDATE by_number_full SET id = 60.0 WHERE id = 6;
UPDATE by_number_full SET id = 60 WHERE id = 60;

UPDATE by_char SET free = free || '   ', n = n + 1;

--- step
UPDATE by_number SET id = 2, big = 'small' WHERE id = 2;
UPDATE by_number SET id = 1 WHERE id = 1;
DELETE FROM by_number WHERE id = 3;
UPDATE by_number_full SET id = 2, big = 'small' WHERE id = 2;
UPDATE by_number_full SET id = 1 WHERE id = 1;
DELETE FROM by_number_full WHERE id = 3;

DELETE FROM by_char WHERE code = 'a';

UPDATE by_char SET code = 'b', n = 'NaN' WHERE code = '';

UPDATE "Mixed Case ""Quoted""" SET "Id" = "Id" + 1000, "ünïcode" = NULL, "back`tick" = E'line\nbreak ''' WHERE "a.b" = 'x';

DELETE FROM "odd schema"."select" WHERE "from" = '';

UPDATE "odd schema"."select" SET "from" = 'null' WHERE "from" = 'NULL';
