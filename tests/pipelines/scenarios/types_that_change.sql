-- Labels, attributes and domains that change under the values.
CREATE TYPE grade AS ENUM ('low', 'high');
CREATE TYPE place AS (street text, nr int);
CREATE DOMAIN code AS varchar(4);
CREATE TABLE graded (id int PRIMARY KEY, g grade, n int);
INSERT INTO graded SELECT i, 'low', i FROM generate_series(1, 4) i;
CREATE TABLE placed (id int PRIMARY KEY, p place, c code, n numeric(6,2));
INSERT INTO placed SELECT i, ROW('street', i)::place, 'c' || i, i FROM generate_series(1, 4) i;

--- step
UPDATE graded SET g = 'high' WHERE id = 1;

ALTER TYPE grade ADD VALUE 'middle' BEFORE 'high';

UPDATE graded SET g = 'middle' WHERE id = 2;

ALTER TYPE grade RENAME VALUE 'low' TO 'poor';

INSERT INTO graded VALUES (5, 'poor', 5);

UPDATE placed SET p = ('before', 1) WHERE id = 1;

ALTER TYPE place ADD ATTRIBUTE city text;

UPDATE placed SET p = ('after', 2, 'town') WHERE id = 2;

ALTER DOMAIN code RENAME TO label;

INSERT INTO placed VALUES (5, ('new', 5, NULL), 'new', 1.25);

--- step
ALTER TYPE place DROP ATTRIBUTE nr;
ALTER TYPE place RENAME ATTRIBUTE city TO town;

UPDATE placed SET p = ('later', 'town') WHERE id = 3;

INSERT INTO graded VALUES (6, 'middle', 6);
