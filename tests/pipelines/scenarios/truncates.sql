-- TRUNCATE inside a transaction with inserts before and after it, of a parent with its child, and of two tables at once.
CREATE TABLE emptied (id int PRIMARY KEY, name text);
CREATE TABLE emptied_child (id int PRIMARY KEY, parent int REFERENCES emptied, name text);
INSERT INTO emptied SELECT i, 'n' FROM generate_series(1, 30) i;
INSERT INTO emptied_child SELECT i, i, 'c' FROM generate_series(1, 30) i;

--- step
INSERT INTO emptied VALUES (31, 'before');
TRUNCATE emptied CASCADE;
INSERT INTO emptied VALUES (1, 'after');

INSERT INTO emptied_child VALUES (1, 1, 'after');

--- step
INSERT INTO emptied SELECT i, 'second' FROM generate_series(2, 9) i;

UPDATE emptied SET name = 'third' WHERE id = 3;

--- step
TRUNCATE emptied, emptied_child;
