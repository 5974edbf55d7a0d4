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


-- Types that are made of others, and the text of extensions that a plain server lacks; odd ids by snapshot, even by stream.
CREATE TYPE vector;
CREATE FUNCTION vector_in(cstring) RETURNS vector AS 'textin' LANGUAGE internal IMMUTABLE STRICT;
CREATE FUNCTION vector_out(vector) RETURNS cstring AS 'textout' LANGUAGE internal IMMUTABLE STRICT;
CREATE TYPE vector (INPUT = vector_in, OUTPUT = vector_out, LIKE = text);
CREATE TYPE hstore;
CREATE FUNCTION hstore_in(cstring) RETURNS hstore AS 'textin' LANGUAGE internal IMMUTABLE STRICT;
CREATE FUNCTION hstore_out(hstore) RETURNS cstring AS 'textout' LANGUAGE internal IMMUTABLE STRICT;
CREATE TYPE hstore (INPUT = hstore_in, OUTPUT = hstore_out, LIKE = text);
CREATE DOMAIN small_positive AS positive CHECK (VALUE < 1000);
CREATE TYPE nest AS (p pair, ps pair[], d small_positive, m mood, during daterange, "of""all" text[]);
CREATE TYPE textrange AS RANGE (subtype = text);
CREATE TABLE typed_alike (id int PRIMARY KEY, h hstore, v vector, d small_positive, ad small_positive[], am mood[], n nest,
  an nest[], mr int4multirange, nr numrange, tr tstzrange, xr textrange, dr daterange, lb int[], md text[], af float8[],
  wide numeric(50,2), neg numeric(5,-2), tz timetz, bits varbit, mny money, j json, mac macaddr, pt point, bx box[],
  ci "char", nm name, vc varchar(5)[], pc char(5)[], free numeric[], anum numeric(6,2)[], ats timestamp[], au uuid[], ab bytea[], iv interval[], tv tsvector);
INSERT INTO typed_alike VALUES
  (1, '"a"=>"1", "b"=>NULL, "q\"\\"=>""', '[1,2.5,-3e-05]', 1.5, '{1.5,NULL}', '{ok,NULL}',
   ROW(ROW(1, 'x, "y"'), ARRAY[ROW(1, 'a')::pair, NULL], 2.5, 'sad', '[2024-01-01,2024-02-01)', ARRAY['q"\', NULL, 'NULL'])::nest,
   NULL, '{[1,3),[5,7)}',
   '[1.50,2.5]', '[2024-01-01 10:00+05:30,)', '["a b","c""d"]', 'empty', '{1,2}', '{}', '{NaN,-Infinity,1e300,NULL}',
   12345678901234567890123456789012345678901234567890 % 10^36::numeric, 12345, '24:00:00+05:30', B'101', 1234.5, '{"a": 1.10}', '08:00:2b:01:02:03',
   '(1,2)', '{(1,2),(0,0);(3,4),(1,1)}', 'x', 'name', '{ab,NULL,""}', '{ab,NULL,""," c"}', '{1.10,NULL,99999999999999999999.000000000000000001}', '{1.25,NULL}', '{"2024-02-29 23:59:59.999999"}',
   '{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}', '{"\\x00ff",NULL}', '{"1 year -2 days",NULL}', 'a:1 b:2'),
  (3, '', '[0]', NULL, '{}', '{}', '(,,,,,)', ARRAY['(,,,,,)'::nest, NULL], '{}', 'empty', '(,)', '(,)', '[2024-01-01,infinity)',
   '[2:3]={1,2}', '{{a,b},{c,d}}', '{}', 'NaN', NULL, '00:00:00-15:59', '', -0.5, 'null', NULL, NULL, '{}', '', '', '{}',
   '{}', '{1.5,1e-19}', '{NaN}', '{infinity}', '{}', '{}', '{}', '');
--- step
INSERT INTO typed SELECT id + 2, b, i2, i8, f4, f8, n, d, plain, t, v, c, u, m, j, ts, tz, dt, tm, iv, raw, ip, o, ai, at, p, r FROM typed;

INSERT INTO typed (id) VALUES (5);


INSERT INTO typed_alike SELECT id + 1, h, v, d, ad, am, n, an, mr, nr, tr, xr, dr, lb, md, af, wide, neg, tz, bits, mny, j, mac, pt, bx,
  ci, nm, vc, pc, free, anum, ats, au, ab, iv, tv FROM typed_alike;
--- step
UPDATE typed SET m = 'happy', t = E'line\nbreak\ttab "quote" \\' WHERE id = 1;

DELETE FROM typed WHERE id = 5;
