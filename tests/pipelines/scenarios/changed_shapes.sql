-- Shapes, keys, types and names that change, rows before and after in one window. Those that change several times within one
-- transaction are in tests/bronze/shapes_within_transactions.sql.
CREATE TABLE shaped (id int PRIMARY KEY, a text, b text, c int, d text);
INSERT INTO shaped SELECT i, 'a' || i, 'b' || i, i, 'd' || i FROM generate_series(1, 8) i;
CREATE TABLE widened (id int PRIMARY KEY, i int4, f float4, n numeric(6,2), d date, v varchar(5), t timestamp, m text,
  s int2, w int8, e int4);
INSERT INTO widened SELECT i, i, i + 0.1, i + 0.25, '2024-01-01', 'v', '2024-01-01 10:00', i, i, i, i FROM generate_series(1, 6) i;
CREATE TABLE key_text (id int PRIMARY KEY, a text);
INSERT INTO key_text SELECT i, 'a' || i FROM generate_series(1, 6) i;
CREATE TABLE rekeyed (id int PRIMARY KEY, other int NOT NULL, a text);
INSERT INTO rekeyed SELECT i, 10 * i, 'a' || i FROM generate_series(1, 6) i;
CREATE SCHEMA former;
CREATE TABLE former.inside (id int PRIMARY KEY, a text);
INSERT INTO former.inside SELECT i, 'a' || i FROM generate_series(1, 3) i;
CREATE TABLE one_name (id int PRIMARY KEY, a text);
INSERT INTO one_name SELECT i, 'one' || i FROM generate_series(1, 3) i;
CREATE TABLE other_name (id int PRIMARY KEY, n int);
INSERT INTO other_name SELECT i, i FROM generate_series(1, 3) i;
CREATE TABLE made_again (id int PRIMARY KEY, a text);
INSERT INTO made_again VALUES (1, 'a');

--- step
UPDATE shaped SET a = 'before', b = 'b before', c = 0, d = 'before' WHERE id < 3;

ALTER TABLE shaped RENAME d TO title;

UPDATE shaped SET title = title || ' after' WHERE id IN (2, 3);

BEGIN;
UPDATE shaped SET a = 'a inside' WHERE id = 4;
ALTER TABLE shaped RENAME a TO x;
ALTER TABLE shaped RENAME b TO a;
ALTER TABLE shaped RENAME x TO b;
UPDATE shaped SET a = 'was b' WHERE id IN (4, 5);
COMMIT;

INSERT INTO shaped VALUES (9, 'was a', 'was b', 9, 'title');

ALTER TABLE shaped DROP c, ADD c boolean;

UPDATE shaped SET c = true WHERE id IN (1, 6);

UPDATE widened SET i = 10, n = 1.5, v = 'first' WHERE id = 1;

ALTER TABLE widened ALTER i TYPE int8, ALTER f TYPE float8, ALTER n TYPE numeric(12,4), ALTER d TYPE timestamp,
  ALTER v TYPE varchar(20), ALTER t TYPE timestamptz, ALTER m TYPE int USING -m::int,
  ALTER s TYPE numeric(12,2), ALTER w TYPE numeric(20,0), ALTER e TYPE float8;

INSERT INTO widened VALUES (7, 5000000000, 0.1, 12345678.1234, '2024-01-01 12:30', 'longer than five', '2024-06-01 10:00+02', 7, 0.25, 7, 0.5);

UPDATE widened SET v = 'after' WHERE id = 2;

UPDATE key_text SET a = 'before' WHERE id = 1;

ALTER TABLE key_text ALTER id TYPE text;

UPDATE key_text SET id = 'two' WHERE id = '2';

UPDATE rekeyed SET a = 'before' WHERE id = 1;

ALTER TABLE rekeyed RENAME id TO nr;

UPDATE rekeyed SET a = 'between' WHERE nr = 2;

UPDATE rekeyed SET nr = 60 WHERE nr = 6;

BEGIN;
UPDATE rekeyed SET a = 'inside' WHERE nr = 2;
ALTER TABLE rekeyed DROP CONSTRAINT rekeyed_pkey, ADD PRIMARY KEY (other);
UPDATE rekeyed SET nr = 1 WHERE other = 30;
DELETE FROM rekeyed WHERE other = 40;
COMMIT;

INSERT INTO rekeyed VALUES (1, 70, 'the same nr');

UPDATE rekeyed SET other = 51 WHERE other = 50;

UPDATE former.inside SET a = 'before' WHERE id = 1;

ALTER SCHEMA former RENAME TO later;

UPDATE later.inside SET a = 'after' WHERE id = 2;

UPDATE one_name SET a = 'before' WHERE id = 1;

BEGIN;
ALTER TABLE one_name RENAME TO no_name;
ALTER TABLE other_name RENAME TO one_name;
ALTER TABLE no_name RENAME TO other_name;
COMMIT;

UPDATE one_name SET n = 20 WHERE id = 2;

UPDATE other_name SET a = 'after' WHERE id = 2;

INSERT INTO made_again VALUES (2, 'b');

DROP TABLE made_again;
CREATE TABLE made_again (id text PRIMARY KEY, b int, a text);
INSERT INTO made_again VALUES ('x', 1, 'a');

CREATE TABLE made_later (id int PRIMARY KEY, a text);
INSERT INTO made_later VALUES (1, 'new');

--- step
UPDATE shaped SET a = 'a later', title = 'later', c = false WHERE id = 5;

UPDATE widened SET i = -1, n = 0.0001 WHERE id = 5;

UPDATE rekeyed SET a = 'later' WHERE other = 60;

UPDATE one_name SET n = 30 WHERE id = 3;

DROP TABLE made_again;
