-- Values stored out of line that an UPDATE did not touch are not sent. They must survive: in the window of their insert, in a later one,
-- together with a key change, and by an index as replica identity; with FULL in key_swaps.sql.
CREATE TABLE toasted (id int PRIMARY KEY, n int, body text, body2 text);
CREATE TABLE toasted_index (id int PRIMARY KEY, code text NOT NULL UNIQUE, n int, body text, body2 text);
ALTER TABLE toasted ALTER body SET STORAGE EXTERNAL, ALTER body2 SET STORAGE EXTERNAL;
ALTER TABLE toasted_index ALTER body SET STORAGE EXTERNAL, ALTER body2 SET STORAGE EXTERNAL;
ALTER TABLE toasted_index REPLICA IDENTITY USING INDEX toasted_index_code_key;
INSERT INTO toasted SELECT i, i, repeat('0123456789abcdef', 600) || i, 'small' FROM generate_series(1, 20) i;
INSERT INTO toasted_index SELECT i, 'c' || i, i, repeat('0123456789abcdef', 600) || i, 'small' FROM generate_series(1, 20) i;

--- step
INSERT INTO toasted VALUES (50, 0, repeat('0123456789abcdef', 600) || 'fifty', 'x');

UPDATE toasted SET n = n + 1;

UPDATE toasted SET body = repeat('fedcba', 2000) WHERE id = 2;
UPDATE toasted SET n = 99 WHERE id = 2;

UPDATE toasted SET body = NULL WHERE id = 3;

UPDATE toasted SET n = 5 WHERE id = 3;

UPDATE toasted_index SET n = n + 1;

--- step
UPDATE toasted SET id = id + 100, n = 7 WHERE id BETWEEN 5 AND 8;

UPDATE toasted SET n = 8 WHERE id = 106;

UPDATE toasted SET id = id + 100 WHERE id = 107;

UPDATE toasted_index SET code = code || 'x' WHERE id < 5;

--- step
DELETE FROM toasted WHERE id = 10;

INSERT INTO toasted VALUES (10, 1, 'short', repeat('xyz', 4000));

UPDATE toasted SET n = 2 WHERE id = 10;

UPDATE toasted SET id = 5 WHERE id = 105;

INSERT INTO toasted VALUES (105, 1, 'again', 'at a left key');
