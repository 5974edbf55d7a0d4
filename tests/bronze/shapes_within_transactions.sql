=== unsent_renamed
CREATE TABLE {t} (id int PRIMARY KEY, a text, b text);
ALTER TABLE {t} ALTER b SET STORAGE EXTERNAL;
INSERT INTO {t} SELECT i, i::text, repeat(md5(i::text), 200) FROM generate_series(1, 4) i;

--- step
BEGIN;
UPDATE {t} SET a = 'x' WHERE id = 1;
ALTER TABLE {t} RENAME b TO c;
INSERT INTO {t} VALUES (9, 'n');
COMMIT;

--- step
UPDATE {t} SET a = 'y' WHERE id = 2;

=== unsent_swapped
CREATE TABLE {t} (id int PRIMARY KEY, a text, b text);
ALTER TABLE {t} ALTER b SET STORAGE EXTERNAL;
INSERT INTO {t} SELECT i, i::text, repeat(md5(i::text), 200) FROM generate_series(1, 4) i;

--- step
BEGIN;
UPDATE {t} SET a = 'x' WHERE id = 1;
ALTER TABLE {t} RENAME a TO x;
ALTER TABLE {t} RENAME b TO a;
ALTER TABLE {t} RENAME x TO b;
UPDATE {t} SET b = 'z' WHERE id = 2;
COMMIT;

--- step
UPDATE {t} SET b = 'y' WHERE id = 3;

=== unsent_dropped_and_added
CREATE TABLE {t} (id int PRIMARY KEY, a text, b text);
ALTER TABLE {t} ALTER b SET STORAGE EXTERNAL;
INSERT INTO {t} SELECT i, i::text, repeat(md5(i::text), 200) FROM generate_series(1, 4) i;

--- step
BEGIN;
UPDATE {t} SET a = 'x' WHERE id = 1;
ALTER TABLE {t} DROP b, ADD b text DEFAULT 'new';
UPDATE {t} SET a = 'y' WHERE id = 2;
INSERT INTO {t} VALUES (9, 'n', 'nine');
COMMIT;

--- step


=== unsent_renamed_full
CREATE TABLE {t} (id int PRIMARY KEY, a text, b text);
ALTER TABLE {t} ALTER b SET STORAGE EXTERNAL;
ALTER TABLE {t} REPLICA IDENTITY FULL;
INSERT INTO {t} SELECT i, i::text, repeat(md5(i::text), 200) FROM generate_series(1, 4) i;

--- step
BEGIN;
UPDATE {t} SET a = 'x' WHERE id = 1;
ALTER TABLE {t} RENAME b TO c;
UPDATE {t} SET a = 'w' WHERE id IN (1, 2);
DELETE FROM {t} WHERE id = 3;
COMMIT;

--- step
UPDATE {t} SET a = 'y' WHERE id = 2;

=== two_added
CREATE TABLE {t} (id int PRIMARY KEY, a text, b text);
ALTER TABLE {t} ALTER b SET STORAGE EXTERNAL;
INSERT INTO {t} SELECT i, i::text, repeat(md5(i::text), 200) FROM generate_series(1, 4) i;

--- step
BEGIN;
UPDATE {t} SET a = 'before' WHERE id = 1;
ALTER TABLE {t} ADD x int;
UPDATE {t} SET x = 1 WHERE id = 2;
ALTER TABLE {t} ADD y int;
UPDATE {t} SET y = 2 WHERE id = 3;
COMMIT;

--- step
BEGIN;
ALTER TABLE {t} DROP x;
UPDATE {t} SET a = '1' WHERE id = 1;
ALTER TABLE {t} RENAME y TO x;
UPDATE {t} SET x = 5 WHERE id = 2;
ALTER TABLE {t} ADD z int DEFAULT 7;
INSERT INTO {t} VALUES (9, 'n');
COMMIT;

=== three_shapes_full
CREATE TABLE {t} (id int PRIMARY KEY, a text, b text);
ALTER TABLE {t} ALTER b SET STORAGE EXTERNAL;
ALTER TABLE {t} REPLICA IDENTITY FULL;
INSERT INTO {t} SELECT i, i::text, repeat(md5(i::text), 200) FROM generate_series(1, 4) i;

--- step
BEGIN;
DELETE FROM {t} WHERE id = 1;
ALTER TABLE {t} ADD x int;
UPDATE {t} SET x = 1, id = 12 WHERE id = 2;
ALTER TABLE {t} ADD y int DEFAULT 3;
UPDATE {t} SET y = 2 WHERE id = 3;
DELETE FROM {t} WHERE id = 12;
COMMIT;

--- step
UPDATE {t} SET y = 9;

=== added_and_dropped
CREATE TABLE {t} (id int PRIMARY KEY, a text, b text);
ALTER TABLE {t} ALTER b SET STORAGE EXTERNAL;
INSERT INTO {t} SELECT i, i::text, repeat(md5(i::text), 200) FROM generate_series(1, 4) i;

--- step
BEGIN;
ALTER TABLE {t} ADD tmp int;
UPDATE {t} SET tmp = 1 WHERE id = 2;
ALTER TABLE {t} DROP tmp;
UPDATE {t} SET a = 'after' WHERE id = 3;
COMMIT;

--- step
UPDATE {t} SET a = 'again' WHERE id = 4;

=== dropped_and_added_of_another_type
CREATE TABLE {t} (id int PRIMARY KEY, code text, n int);
INSERT INTO {t} SELECT i, i::text, i FROM generate_series(1, 4) i;

--- step
BEGIN;
UPDATE {t} SET code = '5' WHERE id = 1;
ALTER TABLE {t} DROP code, ADD code int;
UPDATE {t} SET n = 8 WHERE id = 2;
UPDATE {t} SET code = 7 WHERE id = 3;
COMMIT;

--- step
BEGIN;
UPDATE {t} SET code = 5 WHERE id = 1;
ALTER TABLE {t} DROP code, ADD code text DEFAULT 'd';
UPDATE {t} SET code = 'z' WHERE id = 2;
COMMIT;

=== dropped_and_added_of_the_same_type
CREATE TABLE {t} (id int PRIMARY KEY, code int);
INSERT INTO {t} SELECT i, i FROM generate_series(1, 4) i;

--- step
BEGIN;
UPDATE {t} SET code = 5 WHERE id = 1;
ALTER TABLE {t} DROP code, ADD code int;
UPDATE {t} SET code = 7 WHERE id = 3;
COMMIT;

--- step


=== renamed_away_and_back
CREATE TABLE {t} (id int PRIMARY KEY, a text, b text);
ALTER TABLE {t} ALTER b SET STORAGE EXTERNAL;
INSERT INTO {t} SELECT i, i::text, repeat(md5(i::text), 200) FROM generate_series(1, 4) i;

--- step
BEGIN;
ALTER TABLE {t} RENAME TO {t}_b;
UPDATE {t}_b SET a = 'x' WHERE id = 1;
ALTER TABLE {t}_b RENAME TO {t};
COMMIT;

--- step
BEGIN;
ALTER TABLE {t} RENAME TO {t}_b;
ALTER TABLE {t}_b ADD n int;
UPDATE {t}_b SET n = 1 WHERE id = 2;
ALTER TABLE {t}_b RENAME TO {t};
UPDATE {t} SET n = 2 WHERE id = 3;
COMMIT;

UPDATE {t} SET a = 'z' WHERE id = 4;

=== renamed_out_of_the_patterns_and_back
CREATE TABLE {t} (id int PRIMARY KEY, a text, b text);
ALTER TABLE {t} ALTER b SET STORAGE EXTERNAL;
INSERT INTO {t} SELECT i, i::text, repeat(md5(i::text), 200) FROM generate_series(1, 4) i;

--- step
BEGIN;
ALTER TABLE {t} RENAME TO away_{t};
UPDATE away_{t} SET a = 'x' WHERE id = 1;
INSERT INTO away_{t} VALUES (7, 'seven');
ALTER TABLE away_{t} RENAME TO {t};
COMMIT;

--- step
BEGIN;
ALTER TABLE {t} SET SCHEMA elsewhere;
DELETE FROM elsewhere.{t} WHERE id = 1;
ALTER TABLE elsewhere.{t} SET SCHEMA public;
UPDATE {t} SET a = 'back' WHERE id = 2;
COMMIT;

=== truncated_between_shapes
CREATE TABLE {t} (id int PRIMARY KEY, a text, b text);
ALTER TABLE {t} ALTER b SET STORAGE EXTERNAL;
INSERT INTO {t} SELECT i, i::text, repeat(md5(i::text), 200) FROM generate_series(1, 4) i;

--- step
BEGIN;
UPDATE {t} SET a = 'gone';
ALTER TABLE {t} ADD x int;
INSERT INTO {t} VALUES (8, 'gone', 'too', 1);
TRUNCATE {t};
INSERT INTO {t} VALUES (1, 'a', 'b', 2);
ALTER TABLE {t} DROP a;
INSERT INTO {t} VALUES (2, 'b', 3);
COMMIT;

--- step
UPDATE {t} SET x = 4;

=== key_changed
CREATE TABLE {t} (id int PRIMARY KEY, code int NOT NULL UNIQUE, v text);
INSERT INTO {t} SELECT i, 10 + i, 'v' FROM generate_series(1, 4) i;

--- step
BEGIN;
UPDATE {t} SET v = 'x' WHERE id = 1;
DELETE FROM {t} WHERE id = 2;
ALTER TABLE {t} DROP CONSTRAINT {t}_pkey, ADD PRIMARY KEY (code);
UPDATE {t} SET v = 'y' WHERE code = 13;
UPDATE {t} SET code = 40 WHERE code = 14;
COMMIT;

--- step
DELETE FROM {t} WHERE code = 11;

=== key_changed_first
CREATE TABLE {t} (id int PRIMARY KEY, code int NOT NULL UNIQUE, v text);
INSERT INTO {t} SELECT i, 10 + i, 'v' FROM generate_series(1, 4) i;

--- step
BEGIN;
ALTER TABLE {t} DROP CONSTRAINT {t}_pkey, ADD PRIMARY KEY (code);
UPDATE {t} SET v = 'y' WHERE code = 13;
UPDATE {t} SET code = 40 WHERE code = 14;
COMMIT;

--- step
DELETE FROM {t} WHERE code = 11;

=== identity_changed
CREATE TABLE {t} (id int PRIMARY KEY, a text, b text);
ALTER TABLE {t} ALTER b SET STORAGE EXTERNAL;
INSERT INTO {t} SELECT i, i::text, repeat(md5(i::text), 200) FROM generate_series(1, 4) i;

--- step
BEGIN;
UPDATE {t} SET a = 'x' WHERE id = 1;
UPDATE {t} SET id = 20 WHERE id = 2;
ALTER TABLE {t} REPLICA IDENTITY FULL;
UPDATE {t} SET a = 'y' WHERE id IN (1, 20);
DELETE FROM {t} WHERE id = 3;
COMMIT;

--- step
BEGIN;
UPDATE {t} SET a = 'f' WHERE id = 1;
ALTER TABLE {t} REPLICA IDENTITY DEFAULT;
UPDATE {t} SET id = 30 WHERE id = 1;
COMMIT;

=== shape_before_a_copy
CREATE TABLE {t} (id int PRIMARY KEY, a text, b text);
ALTER TABLE {t} ALTER b SET STORAGE EXTERNAL;
INSERT INTO {t} SELECT i, i::text, repeat(md5(i::text), 200) FROM generate_series(1, 4) i;

--- step
ALTER TABLE {t} ADD tmp int;

UPDATE {t} SET tmp = 1;

ALTER TABLE {t} DROP tmp;

--- step
UPDATE {t} SET a = 'later' WHERE id = 1;
