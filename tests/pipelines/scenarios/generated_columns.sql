-- Generated columns are in neither the stream nor the snapshot.
CREATE TABLE generated (id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) STORED, tail text);
INSERT INTO generated (id, n, tail) SELECT i, i, 't' || i FROM generate_series(1, 10) i;

--- step
UPDATE generated SET n = n + 1 WHERE id < 5;

INSERT INTO generated (id, n) VALUES (11, 11);
