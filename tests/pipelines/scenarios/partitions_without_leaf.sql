-- Partitioned tables of which no partition has rows of its own, from the start or after the last one went.
CREATE TABLE bare (id int PRIMARY KEY, a text) PARTITION BY RANGE (id);
CREATE TABLE nested (id int PRIMARY KEY, a text) PARTITION BY RANGE (id);
CREATE TABLE nested_1 PARTITION OF nested FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id);
CREATE TABLE left_bare (id int PRIMARY KEY, a text) PARTITION BY RANGE (id);
CREATE TABLE left_bare_1 PARTITION OF left_bare FOR VALUES FROM (0) TO (10);
INSERT INTO left_bare VALUES (1, 'a'), (2, 'b');

--- step
DROP TABLE left_bare_1;

CREATE TABLE later_bare (id int PRIMARY KEY) PARTITION BY LIST (id);

--- step
ALTER TABLE bare ADD b int DEFAULT 7;

CREATE TABLE bare_1 PARTITION OF bare FOR VALUES FROM (0) TO (10);

INSERT INTO bare VALUES (1, 'a', 1);

CREATE TABLE nested_2 PARTITION OF nested_1 FOR VALUES FROM (0) TO (5);

INSERT INTO nested VALUES (2, 'b');

CREATE TABLE left_bare_2 PARTITION OF left_bare FOR VALUES FROM (0) TO (10);

INSERT INTO left_bare VALUES (3, 'c');

--- step
DROP TABLE nested_1;

ALTER TABLE bare DETACH PARTITION bare_1;
DROP TABLE bare_1;
