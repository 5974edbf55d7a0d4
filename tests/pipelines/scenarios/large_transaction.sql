-- One transaction of many times the flush size: it must appear whole.
CREATE TABLE large (id int PRIMARY KEY, name text, n int);

--- step
INSERT INTO large SELECT i, 'name ' || i, 0 FROM generate_series(1, 20000) i;
UPDATE large SET n = 1 WHERE id % 2 = 0;
DELETE FROM large WHERE id % 5 = 0;

--- step
UPDATE large SET n = 2 WHERE id % 3 = 0;
