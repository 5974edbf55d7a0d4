-- The recorded history: each part one transaction. record_messages.py adds many small ones.

INSERT INTO kinds VALUES
    (1, true, -7, 42, 1.5, 0.1, 123456789012345678901234567890.123, 7.25, 'täxt, "quoted" \ {x}', '', 'pad',
     '\x00ff', '2024-02-29', '2024-02-29 12:34:56.789', '2024-02-29 12:34:56+02', '24:00', '12:00+02',
     '1 year -2 days', '00000000-0000-0000-0000-000000000001', '{"a": null}', '{"a": [1, "x"]}', '{1,NULL,3}',
     '{"a,b",NULL,"NULL",""}', 'happy', 9.99, '("a, street",)', '[1,5)', '0/16B3748', '10.0.0.1/8'),
    (2, false, 0, 0, 'NaN', '-Infinity', 'NaN', 0, '', 'null', '', '', '0044-03-15 BC', 'infinity', '-infinity',
     '00:00', '00:00+00', 'P0D', NULL, 'null', 'null', '{{1,2},{3,4}}', '{}', 'sad', 0, '(,)', 'empty', NULL,
     '::1');
INSERT INTO kinds (id) VALUES (3);

-- next transaction
INSERT INTO by_default VALUES (1, 'a'), (2, NULL), (3, '');
INSERT INTO by_full VALUES (1, 'a', NULL), (2, NULL, 2);
INSERT INTO by_index VALUES (1, 'x', 'a'), (2, 'y', NULL);
INSERT INTO pairs VALUES (1, 'x', 'a'), (1, 'y', NULL);
INSERT INTO by_nothing VALUES (1, 'a');

-- next transaction
UPDATE by_default SET v = 'b' WHERE id = 1;
UPDATE by_default SET id = 10 WHERE id = 2;
UPDATE by_full SET v = NULL WHERE id = 1;
UPDATE by_full SET id = 20 WHERE id = 2;
UPDATE by_index SET v = 'b' WHERE id = 1;
UPDATE by_index SET code = 'z' WHERE id = 2;
UPDATE by_index SET id = 30 WHERE id = 2;
UPDATE pairs SET b = 'z', v = 'c' WHERE b = 'x';

-- next transaction
UPDATE by_default SET id = -id;
UPDATE by_default SET id = 1 - id;

-- next transaction
DELETE FROM by_default;
DELETE FROM by_full WHERE id = 1;
DELETE FROM by_index WHERE id = 30;
DELETE FROM pairs;

-- next transaction
INSERT INTO toasted VALUES
    (1, repeat(md5('1'), 100), 1, repeat(md5('2'), 100)),
    (2, repeat(md5('3'), 100), 2, 'small');
INSERT INTO toasted_full VALUES (1, repeat(md5('1'), 100), 1);

-- next transaction
UPDATE toasted SET n = n + 1;
UPDATE toasted SET id = 100 WHERE id = 1;
UPDATE toasted SET other = NULL;
UPDATE toasted_full SET n = 2;
DELETE FROM toasted_full;
DELETE FROM toasted WHERE id = 2;

-- next transaction
INSERT INTO "Weird ""schema"."Täble .x" VALUES (1, 'ä "q" \', '数'), (2, E'a\nb\tc', '');
DELETE FROM "Weird ""schema"."Täble .x" WHERE "Id" = 2;

-- next transaction
INSERT INTO no_columns DEFAULT VALUES;
INSERT INTO no_columns DEFAULT VALUES;

-- next transaction
INSERT INTO sales.parts VALUES (1, '2024-05-01', 'first'), (2, '2025-05-01', 'second');
UPDATE sales.parts SET at = '2025-06-01' WHERE id = 1;
DELETE FROM sales.parts WHERE id = 2;

-- next transaction
INSERT INTO child VALUES (1, 1);
INSERT INTO parent VALUES (1);

-- next transaction
INSERT INTO parent VALUES (2);
TRUNCATE parent, child RESTART IDENTITY CASCADE;
INSERT INTO parent VALUES (3);
TRUNCATE by_full, by_index, excluded;
TRUNCATE sales.parts;
TRUNCATE parent CASCADE;

-- next transaction
INSERT INTO generated (id, a) VALUES (1, 2);
UPDATE generated SET a = 3;

-- next transaction
INSERT INTO wide (id, c1, c999) VALUES (1, 1, 999), (2, NULL, 0);
UPDATE wide SET c500 = 5;

-- next transaction
SELECT pg_logical_emit_message(true, 'outbox', 'in a transaction');
INSERT INTO excluded VALUES (1, 'a');
SELECT pg_logical_emit_message(true, 'deltasmelt', 'heartbeat');

-- next transaction
SELECT pg_logical_emit_message(true, 'deltasmelt', '');

-- next transaction
SELECT pg_logical_emit_message(false, 'outside', 'first');
SELECT pg_logical_emit_message(false, 'outside', '');
SELECT pg_logical_emit_message(false, 'deltasmelt', 'dropped');

-- next transaction
INSERT INTO parent VALUES (40);
SELECT pg_logical_emit_message(false, 'outside', '\xff00'::bytea);

-- next transaction
INSERT INTO excluded VALUES (2, 'a');

-- next transaction
INSERT INTO shaped VALUES (1, 1, 'a');
ALTER TABLE shaped ADD c int DEFAULT 5;
INSERT INTO shaped VALUES (2, 2, 'b', 2);
ALTER TABLE shaped RENAME a TO z;
UPDATE shaped SET z = 7 WHERE id = 1;
ALTER TABLE shaped DROP b;
INSERT INTO shaped VALUES (3, 3, 3);

-- next transaction
ALTER TABLE shaped ALTER z TYPE numeric(8,2);
INSERT INTO shaped VALUES (4, 4, 4);

-- next transaction
ALTER TABLE shaped RENAME TO reshaped;
UPDATE reshaped SET c = 0;

-- next transaction
ALTER TABLE reshaped REPLICA IDENTITY FULL;
DELETE FROM reshaped WHERE id = 1;

-- next transaction
ALTER TABLE reshaped DROP CONSTRAINT shaped_pkey;
ALTER TABLE reshaped ADD PRIMARY KEY (z);
ALTER TABLE reshaped REPLICA IDENTITY DEFAULT;
UPDATE reshaped SET z = z + 10 WHERE z = 2;

-- next transaction
INSERT INTO bulk
SELECT i, i % 7, 'text ' || i, CASE WHEN i % 5 > 0 THEN i / 8.0 END FROM generate_series(1, 1500) i;
UPDATE bulk SET a = NULL WHERE id % 10 = 0;
DELETE FROM bulk WHERE id % 100 = 0;

-- next transaction
SAVEPOINT a;
INSERT INTO by_default VALUES (100, 'rolled back');
ROLLBACK TO a;
SAVEPOINT b;
INSERT INTO by_default VALUES (101, 'kept');
RELEASE b;
