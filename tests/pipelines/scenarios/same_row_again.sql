-- One row deleted and inserted again inside a transaction, updated many times in a window, savepoints and rollbacks.
CREATE TABLE again (id int PRIMARY KEY, n int);
INSERT INTO again SELECT i, 0 FROM generate_series(1, 10) i;

--- step
DELETE FROM again WHERE id = 1;
INSERT INTO again VALUES (1, 1);
DELETE FROM again WHERE id = 1;

INSERT INTO again VALUES (11, 1);
DELETE FROM again WHERE id = 11;
INSERT INTO again VALUES (11, 2);

--- step
UPDATE again SET n = n + 1 WHERE id = 2;
UPDATE again SET n = n * 3 WHERE id = 2;
UPDATE again SET n = n + 7 WHERE id = 2;

UPDATE again SET n = n * 2 WHERE id = 2;

--- step
DO $$ BEGIN
  UPDATE again SET n = -1 WHERE id = 5;
  BEGIN
    DELETE FROM again;
    RAISE EXCEPTION 'undone';
  EXCEPTION WHEN raise_exception THEN
    UPDATE again SET n = -2 WHERE id = 6;
  END;
END $$;

BEGIN;
DELETE FROM again;
ROLLBACK;
