-- One silver table for a partitioned one; rows that move between partitions.
CREATE TABLE parted (id int, region text, n int, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE parted_eu PARTITION OF parted FOR VALUES IN ('eu');
CREATE TABLE parted_us (n int, region text NOT NULL, id int NOT NULL);
ALTER TABLE parted ATTACH PARTITION parted_us FOR VALUES IN ('us');
INSERT INTO parted SELECT i, CASE i % 2 WHEN 0 THEN 'eu' ELSE 'us' END, i FROM generate_series(1, 20) i;

--- step
UPDATE parted SET region = 'us' WHERE id = 2;

INSERT INTO parted VALUES (21, 'eu', 0);

DELETE FROM parted WHERE id = 3;

--- step
UPDATE parted SET n = n + 1;
