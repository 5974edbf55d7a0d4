-- Composite, uuid, text, numeric and char(n) keys; 1 and 1.0 are one key, and so are 'a' and 'a  '. Under names that must be quoted; text that looks like NULL, like JSON, like CSV.
CREATE SCHEMA "odd schema";
CREATE TABLE "odd schema"."Mixed Case ""Quoted""" ("a.b" text, "Id" bigint, "from" uuid, "ünïcode" text, "back`tick" text,
  PRIMARY KEY ("a.b", "Id", "from"));
CREATE TABLE only_a_key (id numeric(10,4) PRIMARY KEY);
CREATE TABLE by_number (id numeric PRIMARY KEY, code char(5), big text STORAGE EXTERNAL);
CREATE TABLE by_char (code char(5), free bpchar, n numeric(45,3) NOT NULL, PRIMARY KEY (code, free));
INSERT INTO by_number SELECT i, 'c' || i, repeat('big', 3000) FROM generate_series(1, 24) i;
INSERT INTO by_number VALUES (1e19, 'x', NULL), (-0.5, '', 'y'), (1e-18, NULL, 'z');
INSERT INTO by_char VALUES ('a', 'b', 1), ('', '', 2), ('a c', 'b ', 3), (' a', 'c  ', 12345678901234567890.5);
INSERT INTO "odd schema"."Mixed Case ""Quoted""" SELECT 't' || i % 3, i, md5(i::text)::uuid, 'n', E'tab\t' FROM generate_series(1, 30) i;
INSERT INTO "odd schema"."Mixed Case ""Quoted""" SELECT t, 0, md5('')::uuid, 'alike', NULL
  FROM unnest(ARRAY['', ' ', 'NULL', 'é', 'e', 'E', E'a,b"c\\d\n\t', '\N']) t;
INSERT INTO only_a_key VALUES (0), (-1.5), (99999.9999);

--- step
UPDATE "odd schema"."Mixed Case ""Quoted""" SET "a.b" = 'x' WHERE "Id" BETWEEN 1 AND 4;

UPDATE "odd schema"."Mixed Case ""Quoted""" SET "from" = md5('moved' || "Id")::uuid WHERE "Id" BETWEEN 20 AND 24;

UPDATE "odd schema"."Mixed Case ""Quoted""" SET "ünïcode" = 'of ' || "a.b" WHERE "Id" = 0;

DELETE FROM "odd schema"."Mixed Case ""Quoted""" WHERE "a.b" = 't1';

UPDATE only_a_key SET id = id + 0.0001;

UPDATE by_number SET id = id::text::numeric(10,2) WHERE id IN (1, 2, 3);

UPDATE by_number SET id = 4.0, code = 'moved' WHERE id = 4;
UPDATE by_number SET id = 1.000, code = '1' WHERE id = 1;

DELETE FROM by_number WHERE id = 5.000;
INSERT INTO by_number VALUES (5.00, 'again', 'new');

UPDATE by_number SET id = 60.0 WHERE id = 6;
UPDATE by_number SET id = 60 WHERE id = 60;

UPDATE by_char SET free = free || '   ', n = n + 1;

--- step
UPDATE by_number SET id = 2, big = 'small' WHERE id = 2;
UPDATE by_number SET id = 1 WHERE id = 1;
DELETE FROM by_number WHERE id = 3;

ALTER TABLE by_number REPLICA IDENTITY FULL;

UPDATE by_number SET id = id::text::numeric(10,2) WHERE id IN (11, 12, 13);

UPDATE by_number SET id = 14.0, code = 'moved' WHERE id = 14;
UPDATE by_number SET id = 11.000, code = '1' WHERE id = 11;

DELETE FROM by_number WHERE id = 15.000;
INSERT INTO by_number VALUES (15.00, 'again', 'new');

UPDATE by_number SET id = 70.0 WHERE id = 16;
UPDATE by_number SET id = 70 WHERE id = 70;

DELETE FROM by_char WHERE code = 'a';

UPDATE by_char SET code = 'b', n = 'NaN' WHERE code = '';

UPDATE "odd schema"."Mixed Case ""Quoted""" SET "Id" = "Id" + 1000, "ünïcode" = NULL, "back`tick" = E'line\nbreak ''' WHERE "a.b" = 'x';

DELETE FROM "odd schema"."Mixed Case ""Quoted""" WHERE "a.b" = '';

UPDATE "odd schema"."Mixed Case ""Quoted""" SET "a.b" = 'null' WHERE "a.b" = 'NULL';

--- step
UPDATE by_number SET id = 12, big = 'small' WHERE id = 12;
UPDATE by_number SET id = 11 WHERE id = 11;
DELETE FROM by_number WHERE id = 13;
