-- The same extremes by snapshot (1, 2) and by stream (3, 4, 5).
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN positive AS numeric(8,3) CHECK (VALUE > 0);
CREATE TYPE pair AS (a int, b text);
CREATE TABLE typed (id int PRIMARY KEY, b boolean, i2 int2, i8 int8, f4 float4, f8 float8, n numeric(20,5), d positive,
  plain numeric, t text, v varchar(10), c char(5), u uuid, m mood, j jsonb, ts timestamp, tz timestamptz, dt date,
  tm time, iv interval, raw bytea, ip inet, o oid, ai int[], at text[], p pair, r int4range);
INSERT INTO typed VALUES (1, true, -32768, 9223372036854775807, 1.5, 1e300, 123456789012345.12345, 1.5,
  3.14159265358979323846264338327950288419716939937510, 'text', 'var', 'c', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'ok',
  '{"a": [1, null]}', '2024-02-29 23:59:59.999999', '2024-02-29 23:59:59.999999+05:30', '0001-01-01', '24:00:00',
  '1 year 2 days 03:04:05.678', '\x00ff10', '10.0.0.1/8', 4294967295, '{1,NULL,3}', '{"a,b",NULL,"NULL","","q\"\\"}',
  '(1,"x, y")', '[1,5)');
INSERT INTO typed VALUES (2, false, 1, 2, 'NaN', '-Infinity', 'NaN', 2, 'Infinity', '', '', '', NULL, 'sad', 'null', 'infinity',
  '-infinity', '0044-03-15 BC', '00:00', '-1 mons', '', '::1', 0, '{}', '{{a,b},{c,d}}', '(,)', 'empty');

--- step
INSERT INTO typed SELECT id + 2, b, i2, i8, f4, f8, n, d, plain, t, v, c, u, m, j, ts, tz, dt, tm, iv, raw, ip, o, ai, at, p, r FROM typed;

INSERT INTO typed (id) VALUES (5);

--- step
UPDATE typed SET m = 'happy', t = E'line\nbreak\ttab "quote" \\' WHERE id = 1;

DELETE FROM typed WHERE id = 5;
