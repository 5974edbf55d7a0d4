-- TRUNCATE inside a transaction with inserts before and after it, and of two tables at once. Labels, attributes and domains that change
-- under the values.
CREATE TABLE emptied (id int PRIMARY KEY, name text);
INSERT INTO emptied SELECT i, 'n' FROM generate_series(1, 30) i;
CREATE TYPE grade AS ENUM ('low', 'high');
CREATE TYPE place AS (street text, nr int);
CREATE DOMAIN code AS varchar(4);
CREATE TABLE placed (id int PRIMARY KEY, p place, c code, n numeric(6,2), g grade);
INSERT INTO placed SELECT i, ROW('street', i)::place, 'c' || i, i, 'low' FROM generate_series(1, 4) i;

--- step
INSERT INTO emptied VALUES (31, 'before');
TRUNCATE emptied;
INSERT INTO emptied VALUES (1, 'after');

UPDATE placed SET g = 'high' WHERE id = 1;

ALTER TYPE grade ADD VALUE 'middle' BEFORE 'high';

UPDATE placed SET g = 'middle' WHERE id = 2;

ALTER TYPE grade RENAME VALUE 'low' TO 'poor';

UPDATE placed SET p = ('before', 1) WHERE id = 1;

ALTER TYPE place ADD ATTRIBUTE city text;

UPDATE placed SET p = ('after', 2, 'town') WHERE id = 2;

ALTER DOMAIN code RENAME TO label;

INSERT INTO placed VALUES (5, ('new', 5, NULL), 'new', 1.25, 'poor');

--- step
INSERT INTO emptied SELECT i, 'second' FROM generate_series(2, 9) i;

UPDATE emptied SET name = 'third' WHERE id = 3;

ALTER TYPE place DROP ATTRIBUTE nr;
ALTER TYPE place RENAME ATTRIBUTE city TO town;

UPDATE placed SET p = ('later', 'town') WHERE id = 3;

INSERT INTO placed (id, g) VALUES (6, 'middle');

--- step
TRUNCATE emptied, placed;
