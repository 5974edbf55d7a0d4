-- Columns renamed, swapped, dropped, made again and retyped while nobody reads; rows before and after in one window.
CREATE TABLE ev_renamed (id int PRIMARY KEY, a text, b text, n int);
INSERT INTO ev_renamed SELECT i, 'a' || i, 'b' || i, i FROM generate_series(1, 6) i;
CREATE TABLE ev_swapped (id int PRIMARY KEY, a text, b text);
INSERT INTO ev_swapped SELECT i, 'a' || i, 'b' || i FROM generate_series(1, 6) i;
CREATE TABLE ev_swapped_twice (id int PRIMARY KEY, a text, b text);
INSERT INTO ev_swapped_twice SELECT i, 'a' || i, 'b' || i FROM generate_series(1, 6) i;
CREATE TABLE ev_dropped (id int PRIMARY KEY, a text, b text);
INSERT INTO ev_dropped SELECT i, 'a' || i, 'b' || i FROM generate_series(1, 6) i;
CREATE TABLE ev_other_type (id int PRIMARY KEY, a int, b text);
INSERT INTO ev_other_type SELECT i, i, 'b' || i FROM generate_series(1, 6) i;
CREATE TABLE ev_same_type (id int PRIMARY KEY, b text, a text);
INSERT INTO ev_same_type SELECT i, 'b' || i, 'a' || i FROM generate_series(1, 6) i;
CREATE TABLE ev_came_and_went (id int PRIMARY KEY);
INSERT INTO ev_came_and_went SELECT i FROM generate_series(1, 6) i;
CREATE TABLE ev_named_anew (id int PRIMARY KEY);
INSERT INTO ev_named_anew SELECT i FROM generate_series(1, 6) i;
CREATE TABLE ev_default_renamed (id int PRIMARY KEY);
INSERT INTO ev_default_renamed SELECT i FROM generate_series(1, 6) i;
CREATE TABLE ev_name_taken (id int PRIMARY KEY, a text);
INSERT INTO ev_name_taken SELECT i, 'a' || i FROM generate_series(1, 6) i;
CREATE TABLE ev_widened (id int PRIMARY KEY, i int4, f float4, n numeric(6,2), d date, v varchar(5), u varchar(5), t timestamp);
INSERT INTO ev_widened SELECT i, i, i + 0.1, i + 0.25, '2024-01-01', 'v', 'u', '2024-01-01 10:00' FROM generate_series(1, 6) i;
CREATE TABLE ev_key_widened (id int PRIMARY KEY, a text);
INSERT INTO ev_key_widened SELECT i, 'a' || i FROM generate_series(1, 6) i;
CREATE TABLE ev_key_text (id int PRIMARY KEY, a text);
INSERT INTO ev_key_text SELECT i, 'a' || i FROM generate_series(1, 6) i;
CREATE TABLE ev_key_renamed (id int PRIMARY KEY, a text);
INSERT INTO ev_key_renamed SELECT i, 'a' || i FROM generate_series(1, 6) i;
CREATE TABLE ev_rekeyed (id int PRIMARY KEY, other int NOT NULL, a text);
INSERT INTO ev_rekeyed SELECT i, 10 * i, 'a' || i FROM generate_series(1, 6) i;
CREATE TABLE ev_at_once (id int PRIMARY KEY, a text, b text, c int, d text);
INSERT INTO ev_at_once SELECT i, 'a' || i, 'b' || i, i, 'd' || i FROM generate_series(1, 6) i;
CREATE TABLE ev_former_name (id int PRIMARY KEY, a text);
INSERT INTO ev_former_name SELECT i, 'a' || i FROM generate_series(1, 6) i;
CREATE SCHEMA ev_former;
CREATE TABLE ev_former.inside (id int PRIMARY KEY, a text);
INSERT INTO ev_former.inside SELECT i, 'a' || i FROM generate_series(1, 6) i;
CREATE TABLE ev_one (id int PRIMARY KEY, a text);
INSERT INTO ev_one SELECT i, 'one' || i FROM generate_series(1, 3) i;
CREATE TABLE ev_other (id int PRIMARY KEY, n int);
INSERT INTO ev_other SELECT i, i FROM generate_series(1, 3) i;
CREATE TABLE ev_gone (id int PRIMARY KEY, a text);
INSERT INTO ev_gone VALUES (1, 'a');
CREATE TABLE ev_made_again (id int PRIMARY KEY, a text);
INSERT INTO ev_made_again VALUES (1, 'a');
CREATE TABLE ev_made_alike (id int PRIMARY KEY, a text);
INSERT INTO ev_made_alike VALUES (1, 'a');

--- step
UPDATE ev_renamed SET a = 'before', n = n + 1 WHERE id < 3;

ALTER TABLE ev_renamed RENAME a TO title;

UPDATE ev_renamed SET title = title || ' after' WHERE id IN (2, 3);

INSERT INTO ev_renamed VALUES (7, 'after', 'after', 7);

UPDATE ev_swapped SET a = 'a before', b = 'b before' WHERE id = 1;

BEGIN;
UPDATE ev_swapped SET a = 'a inside' WHERE id = 2;
ALTER TABLE ev_swapped RENAME a TO c;
ALTER TABLE ev_swapped RENAME b TO a;
ALTER TABLE ev_swapped RENAME c TO b;
UPDATE ev_swapped SET a = 'a after inside' WHERE id IN (2, 3);
COMMIT;

UPDATE ev_swapped SET a = 'a after' WHERE id = 4;

UPDATE ev_swapped_twice SET a = 'a before', b = 'b before' WHERE id = 1;

ALTER TABLE ev_swapped_twice RENAME a TO c;
ALTER TABLE ev_swapped_twice RENAME b TO a;
ALTER TABLE ev_swapped_twice RENAME c TO b;

UPDATE ev_swapped_twice SET a = 'a swapped' WHERE id IN (1, 2);

ALTER TABLE ev_swapped_twice RENAME a TO c;
ALTER TABLE ev_swapped_twice RENAME b TO a;
ALTER TABLE ev_swapped_twice RENAME c TO b;

UPDATE ev_swapped_twice SET a = 'a swapped back' WHERE id = 3;

UPDATE ev_dropped SET a = 'before' WHERE id < 3;

ALTER TABLE ev_dropped DROP a;

UPDATE ev_dropped SET b = 'after' WHERE id IN (2, 3);

UPDATE ev_other_type SET a = 100 WHERE id < 3;

ALTER TABLE ev_other_type DROP a, ADD a text;

UPDATE ev_other_type SET a = 'after' WHERE id IN (2, 3);

INSERT INTO ev_other_type VALUES (7, 'after', 'new');

UPDATE ev_same_type SET a = 'before' WHERE id < 3;

ALTER TABLE ev_same_type DROP a, ADD a text;

UPDATE ev_same_type SET a = 'after' WHERE id IN (2, 4);

ALTER TABLE ev_came_and_went ADD a text;

UPDATE ev_came_and_went SET a = 'gone' WHERE id < 3;

ALTER TABLE ev_came_and_went DROP a;

ALTER TABLE ev_came_and_went ADD a text;

UPDATE ev_came_and_went SET a = 'stays' WHERE id = 3;

ALTER TABLE ev_default_renamed ADD a text DEFAULT 'first';

UPDATE ev_default_renamed SET a = 'before' WHERE id < 3;

ALTER TABLE ev_default_renamed RENAME a TO b;

UPDATE ev_default_renamed SET b = 'after' WHERE id = 3;

ALTER TABLE ev_named_anew ADD a text;

UPDATE ev_named_anew SET a = 'before' WHERE id < 3;

ALTER TABLE ev_named_anew RENAME a TO b;

ALTER TABLE ev_named_anew ADD a text;

UPDATE ev_named_anew SET a = 'after' WHERE id = 3;

UPDATE ev_name_taken SET a = 'before' WHERE id < 3;

ALTER TABLE ev_name_taken RENAME a TO b;

UPDATE ev_name_taken SET b = 'between' WHERE id IN (2, 3);

ALTER TABLE ev_name_taken ADD a text;

UPDATE ev_name_taken SET a = 'new a' WHERE id IN (2, 5);

UPDATE ev_widened SET i = 10, n = 1.5, v = 'first' WHERE id = 1;

ALTER TABLE ev_widened ALTER i TYPE int8, ALTER f TYPE float8, ALTER n TYPE numeric(12,4), ALTER d TYPE timestamp, ALTER v TYPE varchar(20), ALTER u TYPE text, ALTER t TYPE timestamptz;

INSERT INTO ev_widened VALUES (7, 5000000000, 0.1, 12345678.1234, '2024-01-01 12:30', 'longer than five', 'longer', '2024-06-01 10:00+02');

UPDATE ev_widened SET v = 'after' WHERE id = 2;

UPDATE ev_key_widened SET a = 'before' WHERE id = 1;

ALTER TABLE ev_key_widened ALTER id TYPE int8;

INSERT INTO ev_key_widened VALUES (5000000000, 'after');

UPDATE ev_key_text SET a = 'before' WHERE id = 1;

ALTER TABLE ev_key_text ALTER id TYPE text;

UPDATE ev_key_text SET id = 'two' WHERE id = '2';

UPDATE ev_key_renamed SET a = 'before' WHERE id = 1;

ALTER TABLE ev_key_renamed RENAME id TO nr;

UPDATE ev_key_renamed SET a = 'after' WHERE nr = 2;

DELETE FROM ev_key_renamed WHERE nr = 3;

UPDATE ev_key_renamed SET nr = 40 WHERE nr = 4;

UPDATE ev_rekeyed SET a = 'before' WHERE id = 1;

BEGIN;
UPDATE ev_rekeyed SET a = 'inside' WHERE id = 2;
ALTER TABLE ev_rekeyed DROP CONSTRAINT ev_rekeyed_pkey, ADD PRIMARY KEY (other);
UPDATE ev_rekeyed SET id = 1 WHERE other = 30;
DELETE FROM ev_rekeyed WHERE other = 40;
COMMIT;

INSERT INTO ev_rekeyed VALUES (1, 70, 'same id');

UPDATE ev_rekeyed SET other = 51 WHERE other = 50;

BEGIN;
UPDATE ev_at_once SET a = 'before', c = 0 WHERE id = 1;
ALTER TABLE ev_at_once RENAME a TO z;
INSERT INTO ev_at_once VALUES (7, 'z7', 'b7', 7, 'd7');
ALTER TABLE ev_at_once DROP b, ADD e int DEFAULT 5;
INSERT INTO ev_at_once VALUES (8, 'z8', 8, 'd8', 8);
ALTER TABLE ev_at_once RENAME d TO b;
UPDATE ev_at_once SET b = 'after' WHERE id IN (1, 2, 7);
DELETE FROM ev_at_once WHERE id = 3;
COMMIT;

UPDATE ev_former_name SET a = 'before' WHERE id = 1;

ALTER TABLE ev_former_name RENAME TO ev_later_name;

UPDATE ev_later_name SET a = 'after' WHERE id = 2;

UPDATE ev_former.inside SET a = 'before' WHERE id = 1;

ALTER SCHEMA ev_former RENAME TO ev_later;

UPDATE ev_later.inside SET a = 'after' WHERE id = 2;

UPDATE ev_one SET a = 'before' WHERE id = 1;

BEGIN;
ALTER TABLE ev_one RENAME TO ev_tmp;
ALTER TABLE ev_other RENAME TO ev_one;
ALTER TABLE ev_tmp RENAME TO ev_other;
COMMIT;

UPDATE ev_one SET n = 20 WHERE id = 2;

UPDATE ev_other SET a = 'after' WHERE id = 2;

UPDATE ev_gone SET a = 'before';

DROP TABLE ev_gone;

INSERT INTO ev_made_again VALUES (2, 'b');

DROP TABLE ev_made_again;
CREATE TABLE ev_made_again (id text PRIMARY KEY, b int, a text);
INSERT INTO ev_made_again VALUES ('x', 1, 'a');

INSERT INTO ev_made_again VALUES ('y', 2, 'b');

DROP TABLE ev_made_alike;
CREATE TABLE ev_made_alike (id int PRIMARY KEY, a text);
INSERT INTO ev_made_alike VALUES (2, 'made alike');

CREATE TABLE ev_new (id int PRIMARY KEY, a text);
INSERT INTO ev_new VALUES (1, 'new');

--- step
UPDATE ev_renamed SET title = 'later', b = 'later' WHERE id = 5;

UPDATE ev_swapped SET a = 'a later' WHERE id = 5;

UPDATE ev_dropped SET b = 'later' WHERE id = 5;

UPDATE ev_other_type SET a = 'later' WHERE id = 5;

UPDATE ev_same_type SET a = 'later' WHERE id = 5;

UPDATE ev_name_taken SET a = 'later' WHERE id = 5;

UPDATE ev_widened SET v = 'later' WHERE id = 5;

UPDATE ev_key_text SET a = 'later' WHERE id = '5';

UPDATE ev_key_renamed SET a = 'later' WHERE nr = 5;

UPDATE ev_rekeyed SET a = 'later' WHERE other = 60;

UPDATE ev_at_once SET z = 'later', e = 1 WHERE id = 5;

UPDATE ev_later_name SET a = 'later' WHERE id = 5;

UPDATE ev_later.inside SET a = 'later' WHERE id = 5;

UPDATE ev_one SET n = 30 WHERE id = 3;

INSERT INTO ev_made_alike VALUES (3, 'later');

CREATE TABLE ev_gone (id int PRIMARY KEY, b int);
INSERT INTO ev_gone VALUES (7, 7);

INSERT INTO ev_new VALUES (2, 'later');
