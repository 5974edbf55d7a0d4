-- Under a deferrable key two rows hold one key for a moment: swaps, and shifts of a whole range. Such a key cannot be a replica
-- identity, so PostgreSQL asks for FULL.
CREATE TABLE swapped (id int NOT NULL, name text, CONSTRAINT swapped_pk PRIMARY KEY (id) DEFERRABLE INITIALLY DEFERRED);
ALTER TABLE swapped REPLICA IDENTITY FULL;
INSERT INTO swapped SELECT i, 'row ' || i FROM generate_series(1, 20) i;

--- step
UPDATE swapped SET id = CASE id WHEN 1 THEN 2 ELSE 1 END WHERE id IN (1, 2);

--- step
UPDATE swapped SET id = id + 1 WHERE id >= 10;

--- step
UPDATE swapped SET id = id - 1;
UPDATE swapped SET name = name || ' moved';
