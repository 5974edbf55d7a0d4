-- A column added while changes flow; rows from before and after in one window.
CREATE TABLE grown (id int PRIMARY KEY, name text);
INSERT INTO grown SELECT i, 'n' FROM generate_series(1, 10) i;

--- step
INSERT INTO grown VALUES (11, 'before');

ALTER TABLE grown ADD COLUMN extra int;

INSERT INTO grown VALUES (12, 'after', 5);

UPDATE grown SET extra = 1 WHERE id = 1;

--- step
INSERT INTO grown VALUES (13, 'later', 6);
