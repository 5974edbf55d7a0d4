-- Keys that change once, in a chain inside one transaction, away and back; and a new row at a key that was left.
CREATE TABLE moved (id int PRIMARY KEY, name text);
INSERT INTO moved SELECT i, 'n' || i FROM generate_series(1, 40) i;

--- step
UPDATE moved SET id = 100 WHERE id = 1;

UPDATE moved SET id = 101 WHERE id = 2;
UPDATE moved SET id = 102, name = 'chain' WHERE id = 101;

UPDATE moved SET id = 200 WHERE id = 3;

UPDATE moved SET id = 3 WHERE id = 200;

--- step
UPDATE moved SET id = id + 1000 WHERE id BETWEEN 10 AND 20;

UPDATE moved SET id = id - 1000, name = name || '!' WHERE id BETWEEN 1010 AND 1012;

INSERT INTO moved VALUES (1, 'new at a left key');

--- step
DELETE FROM moved WHERE id > 1000;

UPDATE moved SET id = -id WHERE id > 30;
