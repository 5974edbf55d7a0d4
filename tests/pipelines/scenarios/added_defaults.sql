-- Columns that come with a value for the rows before them, of which the log says nothing; no copy is taken. The partitioned table is one
-- in silver: its rows move between partitions, and one of these has its columns in another order.
CREATE TABLE defaulted (id int PRIMARY KEY, name text);
INSERT INTO defaulted SELECT i, 'n' FROM generate_series(1, 10) i;
CREATE TABLE defaulted_quietly (id int PRIMARY KEY, n numeric(6, 2));
INSERT INTO defaulted_quietly VALUES (1, 'NaN'), (2, 2), (3, NULL);
CREATE TABLE defaulted_inside (id int PRIMARY KEY, big text);
INSERT INTO defaulted_inside SELECT i, repeat('o', 9000) FROM generate_series(1, 5) i;
ALTER TABLE defaulted_inside ALTER big SET STORAGE EXTERNAL;
CREATE TABLE defaulted_full (id int PRIMARY KEY, name text);
ALTER TABLE defaulted_full REPLICA IDENTITY FULL;
INSERT INTO defaulted_full SELECT i, 'n' FROM generate_series(1, 6) i;
CREATE TABLE defaulted_emptied (id int PRIMARY KEY, name text);
INSERT INTO defaulted_emptied SELECT i, 'n' FROM generate_series(1, 6) i;
CREATE TABLE defaulted_key (id int PRIMARY KEY, name text);
INSERT INTO defaulted_key SELECT i, 'n' FROM generate_series(1, 6) i;
CREATE TABLE defaulted_parts (id int PRIMARY KEY, name text) PARTITION BY RANGE (id);
CREATE TABLE defaulted_parts_1 (name text, id int NOT NULL);
ALTER TABLE defaulted_parts ATTACH PARTITION defaulted_parts_1 FOR VALUES FROM (0) TO (5);
CREATE TABLE defaulted_parts_2 PARTITION OF defaulted_parts FOR VALUES FROM (5) TO (20) PARTITION BY RANGE (id);
CREATE TABLE defaulted_parts_3 PARTITION OF defaulted_parts_2 FOR VALUES FROM (5) TO (20);
INSERT INTO defaulted_parts SELECT i, 'n' FROM generate_series(1, 9) i;

--- step
UPDATE defaulted SET name = 'before' WHERE id < 4;

INSERT INTO defaulted VALUES (11, 'before');

ALTER TABLE defaulted ADD extra int DEFAULT 7, ADD said text DEFAULT E'it''s\n"a\\b"', ADD plain int;

ALTER TABLE defaulted ALTER extra SET DEFAULT 8;

UPDATE defaulted SET name = 'after' WHERE id = 3;

UPDATE defaulted SET extra = 1, said = NULL WHERE id = 1;

INSERT INTO defaulted (id, name) VALUES (12, 'after');

INSERT INTO defaulted VALUES (13, 'after', NULL, NULL, 1);

DELETE FROM defaulted WHERE id = 2;

ALTER TABLE defaulted_quietly ADD m numeric(4, 1) DEFAULT 'NaN', ADD d date DEFAULT 'infinity', ADD j jsonb NOT NULL DEFAULT '[null]';

BEGIN;
INSERT INTO defaulted_inside VALUES (6, 'small');
UPDATE defaulted_inside SET id = 21 WHERE id = 1;
ALTER TABLE defaulted_inside ADD days int[] DEFAULT '{1,2}', ADD v int DEFAULT 3;
ALTER TABLE defaulted_inside ALTER v DROP DEFAULT;
INSERT INTO defaulted_inside VALUES (7, 'new', '{}', 9);
INSERT INTO defaulted_inside VALUES (8, 'new');
UPDATE defaulted_inside SET v = 4 WHERE id IN (2, 6);
UPDATE defaulted_inside SET id = 23 WHERE id = 3;
DELETE FROM defaulted_inside WHERE id = 4;
COMMIT;

BEGIN;
UPDATE defaulted_full SET name = 'before' WHERE id < 4;
DELETE FROM defaulted_full WHERE id = 1;
ALTER TABLE defaulted_full ADD v int DEFAULT 3, ADD w text;
UPDATE defaulted_full SET name = 'after' WHERE id IN (3, 4);
DELETE FROM defaulted_full WHERE id = 5;
INSERT INTO defaulted_full VALUES (9, 'x', 9, 'y');
COMMIT;

BEGIN;
INSERT INTO defaulted_emptied VALUES (7, 'gone');
TRUNCATE defaulted_emptied;
INSERT INTO defaulted_emptied VALUES (8, 'stays');
ALTER TABLE defaulted_emptied ADD v int DEFAULT 3;
INSERT INTO defaulted_emptied VALUES (9, 'stays', 4);
COMMIT;

BEGIN;
UPDATE defaulted_key SET name = 'before' WHERE id = 1;
ALTER TABLE defaulted_key ADD tenant int NOT NULL DEFAULT 5;
ALTER TABLE defaulted_key DROP CONSTRAINT defaulted_key_pkey, ADD PRIMARY KEY (tenant, id);
UPDATE defaulted_key SET tenant = 6 WHERE id = 2;
DELETE FROM defaulted_key WHERE id = 3;
INSERT INTO defaulted_key VALUES (4, 'other', 1);
COMMIT;

UPDATE defaulted_parts SET id = 12 WHERE id = 2;

UPDATE defaulted_parts SET name = 'before' WHERE id IN (1, 6);

DELETE FROM defaulted_parts WHERE id = 3;

ALTER TABLE defaulted_parts ADD v int DEFAULT 3;

UPDATE defaulted_parts SET id = 0, name = 'moved' WHERE id = 7;

INSERT INTO defaulted_parts VALUES (10, 'x', 4);

--- step
UPDATE defaulted SET name = 'later', extra = extra + 1 WHERE id > 5;

UPDATE defaulted_quietly SET m = 1 WHERE id = 1;

UPDATE defaulted_quietly SET n = 5 WHERE id = 3;

INSERT INTO defaulted_quietly VALUES (4, 'NaN', 'NaN', 'infinity', '1');

UPDATE defaulted_inside SET v = 5 WHERE id IN (21, 5);

UPDATE defaulted_full SET w = 'later' WHERE id IN (2, 6);

UPDATE defaulted_key SET name = 'later' WHERE id IN (4, 5);

ALTER TABLE defaulted_emptied ADD w text DEFAULT 'second';

ALTER TABLE defaulted_parts ADD w text DEFAULT 'second';

UPDATE defaulted_parts SET name = name || '!' WHERE id < 3;

--- step
VACUUM FULL defaulted;

UPDATE defaulted_emptied SET v = 5;

UPDATE defaulted_parts SET v = 5 WHERE id > 7;
