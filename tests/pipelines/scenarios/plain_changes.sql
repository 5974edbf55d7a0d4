-- Inserts, updates and deletes on top of a snapshot, and a column added between them; then everything goes. From 100001 on, the rows of
-- one transaction of many times the flush size, which must appear whole.
CREATE TABLE plain (id int PRIMARY KEY, name text, price numeric(10,2), at timestamptz, day date, ok boolean);
INSERT INTO plain SELECT i, 'n' || i, i * 1.5, '2024-01-01 00:00:00+00'::timestamptz + i * interval '1 hour',
  DATE '2024-01-01' + i, i % 2 = 0 FROM generate_series(1, 500) i;

--- step
INSERT INTO plain (id) SELECT i FROM generate_series(501, 600) i;

UPDATE plain SET name = '' WHERE id % 10 = 0;

ALTER TABLE plain ADD COLUMN extra int;

INSERT INTO plain (id, extra) VALUES (701, 5);

UPDATE plain SET extra = 1 WHERE id = 1;

DELETE FROM plain WHERE id % 7 = 0;

INSERT INTO plain (id, name, extra) SELECT i, 'name ' || i, 0 FROM generate_series(100001, 110000) i;
UPDATE plain SET extra = 1 WHERE id > 100000 AND id % 2 = 0;
DELETE FROM plain WHERE id > 100000 AND id % 5 = 0;

--- step
UPDATE plain SET price = -price WHERE id < 50;

UPDATE plain SET price = 0 WHERE id < 25;

DELETE FROM plain WHERE id BETWEEN 10 AND 20;

INSERT INTO plain (id, name, extra) VALUES (15, 'back', 6);

UPDATE plain SET extra = 2 WHERE id > 100000 AND id % 3 = 0;

--- step
DELETE FROM plain;
