-- Under a deferrable key two rows hold one key for a moment: swaps, and shifts of a whole range. Such a key cannot be a replica
-- identity, so PostgreSQL asks for FULL. Rows from 101 on hold values out of line, as in out_of_line_values.sql.
CREATE TABLE swapped (id int NOT NULL, name text, n int, body text, body2 text,
  CONSTRAINT swapped_pk PRIMARY KEY (id) DEFERRABLE INITIALLY DEFERRED);
ALTER TABLE swapped ALTER body SET STORAGE EXTERNAL, ALTER body2 SET STORAGE EXTERNAL;
ALTER TABLE swapped REPLICA IDENTITY FULL;
INSERT INTO swapped SELECT i, 'row ' || i FROM generate_series(1, 20) i;
INSERT INTO swapped SELECT i, 'out of line', i, repeat('0123456789abcdef', 600) || i, 'small' FROM generate_series(101, 120) i;

--- step
UPDATE swapped SET id = CASE id WHEN 1 THEN 2 ELSE 1 END WHERE id IN (1, 2);

UPDATE swapped SET n = n + 1 WHERE id > 100;

--- step
UPDATE swapped SET id = id + 1 WHERE id BETWEEN 10 AND 100;

UPDATE swapped SET id = id + 100 WHERE id BETWEEN 101 AND 104;

--- step
UPDATE swapped SET id = id - 1;
UPDATE swapped SET name = name || ' moved';
