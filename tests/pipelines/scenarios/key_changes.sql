-- Keys that change once, in a chain inside one transaction, away and back; and a new row at a key that was left. From 501 on rows are
-- deleted and inserted again inside a transaction, updated many times in a window, and changed between savepoints and rollbacks.
-- A generated column is in neither the stream nor the snapshot.
CREATE TABLE moved (id int PRIMARY KEY, name text, n int, twice int GENERATED ALWAYS AS (n * 2) STORED, tail text);
INSERT INTO moved (id, name, n, tail) SELECT i, 'n' || i, i, 't' || i FROM generate_series(1, 40) i;
INSERT INTO moved (id, n) SELECT i, 0 FROM generate_series(501, 510) i;

--- step
UPDATE moved SET id = 100 WHERE id = 1;

UPDATE moved SET id = 101 WHERE id = 2;
UPDATE moved SET id = 102, name = 'chain' WHERE id = 101;

UPDATE moved SET id = 200 WHERE id = 3;

UPDATE moved SET id = 3 WHERE id = 200;

DELETE FROM moved WHERE id = 501;
INSERT INTO moved (id, n) VALUES (501, 1);
DELETE FROM moved WHERE id = 501;

INSERT INTO moved (id, n) VALUES (511, 1);
DELETE FROM moved WHERE id = 511;
INSERT INTO moved (id, n) VALUES (511, 2);

UPDATE moved SET n = n + 1 WHERE id BETWEEN 4 AND 8;

--- step
UPDATE moved SET id = id + 1000 WHERE id BETWEEN 10 AND 20;

UPDATE moved SET id = id - 1000, name = name || '!' WHERE id BETWEEN 1010 AND 1012;

INSERT INTO moved (id, name) VALUES (1, 'new at a left key');

UPDATE moved SET n = n + 1 WHERE id = 502;
UPDATE moved SET n = n * 3 WHERE id = 502;
UPDATE moved SET n = n + 7 WHERE id = 502;

UPDATE moved SET n = n * 2 WHERE id = 502;

--- step
DELETE FROM moved WHERE id > 1000;

UPDATE moved SET id = -id WHERE id BETWEEN 31 AND 499;

DO $$ BEGIN
  UPDATE moved SET n = -1 WHERE id = 505;
  BEGIN
    DELETE FROM moved;
    RAISE EXCEPTION 'undone';
  EXCEPTION WHEN raise_exception THEN
    UPDATE moved SET n = -2 WHERE id = 506;
  END;
END $$;

BEGIN;
DELETE FROM moved;
ROLLBACK;
