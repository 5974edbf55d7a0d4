-- The stream speaks of the root (REPLICA IDENTITY FULL); each partition logs old rows by its own identity.
CREATE TABLE mixed (id int, region text, note text, big text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
ALTER TABLE mixed REPLICA IDENTITY FULL;
CREATE TABLE mixed_eu PARTITION OF mixed FOR VALUES IN ('eu');
CREATE TABLE mixed_us PARTITION OF mixed FOR VALUES IN ('us');
ALTER TABLE mixed_us REPLICA IDENTITY FULL;
ALTER TABLE mixed ALTER big SET STORAGE EXTERNAL;
ALTER TABLE mixed_eu ALTER big SET STORAGE EXTERNAL;
ALTER TABLE mixed_us ALTER big SET STORAGE EXTERNAL;
INSERT INTO mixed SELECT i, CASE i % 2 WHEN 0 THEN 'eu' ELSE 'us' END, 'note ' || i, repeat(i::text, 4000) FROM generate_series(1, 20) i;

--- step
INSERT INTO mixed VALUES (31, 'eu', 'a', 'b'), (32, 'us', 'a', 'b');

DELETE FROM mixed WHERE id IN (31, 32);

DELETE FROM mixed WHERE id IN (1, 2);

UPDATE mixed SET note = 'changed' WHERE id IN (3, 4);

DELETE FROM mixed WHERE id = 3;

UPDATE mixed SET id = id + 100, note = 'moved' WHERE id IN (5, 6);

UPDATE mixed SET region = CASE region WHEN 'eu' THEN 'us' ELSE 'eu' END WHERE id IN (7, 8);

--- step
ALTER TABLE mixed_us REPLICA IDENTITY DEFAULT;

ALTER TABLE mixed_eu REPLICA IDENTITY FULL;

INSERT INTO mixed VALUES (33, 'eu', 'a', 'b'), (34, 'us', 'a', 'b');

DELETE FROM mixed WHERE id IN (33, 34);

UPDATE mixed SET id = id + 200, note = 'moved again' WHERE id IN (9, 10);

CREATE TABLE mixed_asia (LIKE mixed INCLUDING ALL);

ALTER TABLE mixed ATTACH PARTITION mixed_asia FOR VALUES IN ('asia');

INSERT INTO mixed VALUES (35, 'asia', 'a', 'b'), (36, 'asia', 'a', 'b');

DELETE FROM mixed WHERE id = 35;

UPDATE mixed SET region = 'asia' WHERE id IN (11, 12);

--- step
DELETE FROM mixed WHERE region = 'asia';

UPDATE mixed SET note = 'last';
