-- A schema of every kind of type, value, relation and change that PostgreSQL has. `=== name` begins a section:
-- its tables and rows; `--- step` what happens to them while a pipeline runs. Empty lines part transactions.

=== numbers
CREATE TABLE whole (id bigint PRIMARY KEY, a int2, b int4, c int8, d oid, e boolean, f money, g xid, h xid8, i cid);
INSERT INTO whole VALUES
  (-9223372036854775808, -32768, -2147483648, -9223372036854775808, 0, true, '-92233720368547758.08', '0', '0', '0'),
  (9223372036854775807, 32767, 2147483647, 9223372036854775807, 4294967295, false, '92233720368547758.07', '4294967295', '18446744073709551615', '4294967295'),
  (0, 0, 0, 0, 1, NULL, 0, NULL, NULL, NULL);
CREATE TABLE floating (id int PRIMARY KEY, a float4, b float8);
INSERT INTO floating VALUES (1, 'NaN', 'NaN'), (2, 'Infinity', '-Infinity'), (3, '-0', '-0'), (4, '1e-45', '5e-324'),
  (5, '1.17549421e-38', '2.2250738585072011e-308'), (6, '3.4028235e38', '1.7976931348623157e308'), (7, 0.1, 0.1), (8, 16777217, 9007199254740993),
  (9, '0', '-2.2250738585072014e-308'), (10, NULL, NULL);
CREATE TABLE exact (id numeric(20,3) PRIMARY KEY, a numeric, b numeric(38,38), c numeric(38,0), d numeric(5,-2), e numeric(2,5), f numeric(1000,500),
  g numeric(1,-37), h numeric(1,-38), i numeric(1000,-1000));
INSERT INTO exact VALUES (-0.001, 'NaN', 0.99999999999999999999999999999999999999, 99999999999999999999999999999999999999, 9999900, 0.00099, 'NaN', 9e37, 9e38, 1e1999),
  (1, 'Infinity', '-0.00000000000000000000000000000000000001', -1, -100, 0, 1e499, '-1e37', 0, 0), (2, '-Infinity', 'NaN', 'NaN', 'NaN', 'NaN', NULL, NULL, NULL, NULL),
  (3, (repeat('9', 1000) || '.' || repeat('1', 1000))::numeric, 0, 0, 0, 0, 0, 0, 0, 0), (4, 1.000, NULL, NULL, NULL, NULL, 1e-500, NULL, NULL, NULL);

--- step
UPDATE floating SET a = b, b = a WHERE id IN (2, 3);

UPDATE exact SET id = -id, a = -a WHERE id IN (1, 3);
DELETE FROM exact WHERE id = 4;

UPDATE whole SET id = id + 1 WHERE id < 0;

=== times
CREATE TABLE moments (id timestamptz PRIMARY KEY, a timestamp, b date, c time, d timetz, e interval, f timestamp(0), g timestamptz(3), h interval year to month,
  i interval second(2));
INSERT INTO moments VALUES
  ('2024-02-29 12:00:00.123456+05:30', '294276-12-31 23:59:59.999999', '5874897-12-31', '24:00', '24:00:00+15:59:59', '178000000 years', '2024-12-31 23:59:59.5', now(), '1 year 2 mons', '3.14159'),
  ('2024-02-29 12:00:00.123457+05:30', '4714-11-24 00:00:00 BC', '4714-11-24 BC', '00:00', '00:00-15:59:59', '-178000000 years', 'infinity', 'infinity', '-1 mon', '-0.005'),
  ('0001-01-01 00:00:00+00', '0001-12-31 BC', '0001-01-01 BC', '23:59:59.999999', '12:00:00.5+00:00:01', '1 mon -1 day 00:00:00.000001', '-infinity', '-infinity', NULL, NULL),
  ('9999-12-31 23:59:59.999999+00', '10000-01-01', '10000-01-01', '12:00:00.000001', NULL, '2147483647 days', '1582-10-10', '1582-10-10 00:00+00', '0', '0'),
  ('1900-01-01 00:00:00+00', '0001-01-01', '0001-01-01', NULL, NULL, '0', '9999-12-31 23:59:59', '1900-01-01 00:00:00.0005+00', NULL, NULL),
  ('1901-12-13 20:45:52+00', 'infinity', 'infinity', NULL, NULL, '-00:00:00.000001', NULL, NULL, NULL, NULL),
  ('2038-01-19 03:14:08+00', '-infinity', '-infinity', NULL, NULL, '1 year -1 mon 1 day -1 hour', NULL, NULL, NULL, NULL);

--- step
UPDATE moments SET id = id + interval '1 microsecond', a = a WHERE b < '0001-01-01';

SET LOCAL TimeZone = 'Asia/Kathmandu';
UPDATE moments SET a = '2024-03-31 02:30', g = '2024-03-31 02:30' WHERE d IS NULL;

=== texts
CREATE EXTENSION IF NOT EXISTS plpgsql;
CREATE TABLE texts (id text PRIMARY KEY, a varchar, b char(5), c "char", d name, e bytea, f bit(7), g varbit, h uuid, i json, j jsonb, k jsonpath, l xml, m varchar(3), n char);
INSERT INTO texts VALUES ('', '', '', '', '', '', B'0000000', B'', '00000000-0000-0000-0000-000000000000', 'null', 'null', '$', NULL, '', ''),
  (E'\t\n\r\x0b\x0c\x01\x7f', E'\\N', E'a\n', 'x', repeat('n', 63), '\x00ff5c', B'1111111', repeat('10', 500)::varbit, 'ffffffff-ffff-ffff-ffff-ffffffffffff', ' { "a" : 1.10e400 , "a" : 2 } ', '{"a": 1e400, "é": "\u0041🙂"}', 'strict $."a"[*] ? (@.b > 1)', NULL, 'é🙂', 'é'),
  (U&'\202E\0430\0301\+01F642', 'NULL', 'null', E'\\', '"', decode(repeat('00', 3000), 'hex'), NULL, NULL, NULL, '"\u0000"', '[]', NULL, NULL, NULL, NULL),
  (repeat(E'{"\\,}()\n', 20000), '${env:HOME} ${spark.app.name} --;/*', '  x', '$', '${x}', NULL, NULL, NULL, NULL, '[]', '{}', 'lax $.a', NULL, 'abc', ' ');
CREATE TABLE nets (id inet PRIMARY KEY, a cidr, b macaddr, c macaddr8, d pg_lsn, e tsvector, f tsquery, g txid_snapshot, h pg_snapshot, i tid);
INSERT INTO nets VALUES ('0.0.0.0/0', '0.0.0.0/0', '00:00:00:00:00:00', '00:00:00:00:00:00:00:00', '0/0', '', '', '1:1:', '1:1:', '(0,0)'),
  ('::1', '::/0', 'ff:ff:ff:ff:ff:ff', 'ff:ff:ff:ff:ff:ff:ff:ff', 'FFFFFFFF/FFFFFFFF', '''a b'':1A,2B ''it''''s'':3', '!(a & b) | c <-> d:*AB', '10:20:10,14,15', '10:20:10,14,15', '(4294967295,65535)'),
  ('10.1.2.3/8', '10.0.0.0/8', '08:00:2b:01:02:03', '08:00:2b:01:02:03', NULL, NULL, NULL, NULL, NULL, NULL), ('10.1.2.3', '2001:db8::/32', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
CREATE TABLE names (id int PRIMARY KEY, a regclass, b regtype, c regproc, d regprocedure, e regoper, f regoperator, g regrole, h regnamespace, i regconfig, j regdictionary,
  k regcollation, l oid, m refcursor, n int2vector, o oidvector, p aclitem[]);
INSERT INTO names VALUES (1, 'pg_class', 'timestamptz', 'now', 'now()', '||/', '+(int4,int4)', 'pg_monitor', 'pg_catalog', 'english', 'simple', '"C"', 1, 'c', '1 2', '3 4', NULL),
  (2, 'texts', 'texts', 'upper(text)'::regprocedure::oid, 'upper(text)', 0, 0, 0, 'public', 0, 0, 0, NULL, '', '', '', '{}'), (3, 4294967295, 4294967295, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
CREATE TABLE shapes (id int PRIMARY KEY, a point, b line, c lseg, d box, e path, f polygon, g circle, h box[]);
INSERT INTO shapes VALUES (1, '(1e300,-0)', '{1,-1,0}', '[(0,0),(1,1)]', '(1,1),(0,0)', '[(0,0),(1,1)]', '((0,0),(1,1))', '<(0,0),1>', '{(1,1),(0,0);(3,3),(2,2)}'),
  (2, '(NaN,Infinity)', NULL, NULL, NULL, '((0,0),(1,1),(2,0))', NULL, '<(1,2),Infinity>', '{}');

--- step
UPDATE texts SET a = 'changed' WHERE length(id) > 1000;

UPDATE texts SET id = id || E'\\x', e = e || '\x00' WHERE id LIKE E'\t%';

ALTER TABLE texts RENAME b TO "B ü 🙂";
ALTER TABLE texts ADD "it's; -- ${x}" text DEFAULT E'\\ ${env:HOME} ''"` \n';

UPDATE texts SET c = NULL, "it's; -- ${x}" = '' WHERE id = '';

ALTER TABLE nets ALTER a TYPE inet;
ALTER TABLE names ALTER a TYPE oid, ALTER l TYPE regclass;

INSERT INTO names (id, a, l) VALUES (4, 5, 'pg_type');

=== containers
CREATE TYPE mood AS ENUM ('', 'sad', 'it''s "ok", {NULL}');
CREATE DOMAIN posint AS int CHECK (VALUE > 0);
CREATE DOMAIN posints AS posint[];
CREATE TYPE inner_ AS (a posints, b text, "C d" mood[], e numeric(5,-2));
CREATE DOMAIN outer_ AS inner_ CHECK ((VALUE).b IS DISTINCT FROM 'no');
CREATE DOMAIN outers AS outer_[];
CREATE TYPE whole_ AS (o outers, r int4range, m int4multirange, t timestamp[], n inner_);
CREATE TYPE floats AS RANGE (subtype = float8, subtype_diff = float8mi);
CREATE TABLE arrays (id int PRIMARY KEY, a int[], b text[], c numeric(6,2)[], d timestamptz[], e mood[], f posints, g int[3][3], h bytea[], i date[], j float8[]);
INSERT INTO arrays VALUES (1, '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}'),
  (2, '{NULL}', '{NULL,"NULL","",null,"{}",",","\"","\\"}', '{NaN}', '{infinity}', '{"",sad,"it''s \"ok\", {NULL}",NULL}', '{1,NULL}', '{{1,2},{3,4}}', '{"\\x","\\x00",NULL}', '{0001-01-01,9999-12-31}', '{NaN,-0,Infinity}'),
  (3, '[0:2]={1,2,3}', '[-1:0][2:3]={{a,b},{c,d}}', '{1.5,NULL}', '{2024-01-01 00:00:00+00}', NULL, '[5:5]={5}', '{{{1}}}', NULL, '{"0044-03-15 BC"}', '{5e-324}'),
  (4, array_fill(7, ARRAY[3000]), array_fill(repeat('x', 100), ARRAY[300]), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
CREATE TABLE ranges (id int4range PRIMARY KEY, a int8range, b numrange, c tsrange, d tstzrange, e daterange, f floats, g int4multirange, h nummultirange, i tsmultirange, j int4range[]);
INSERT INTO ranges VALUES ('empty', 'empty', 'empty', 'empty', 'empty', 'empty', 'empty', '{}', '{}', '{}', '{}'),
  ('(,)', '(,)', '(,)', '(,)', '(,)', '(,)', '(,)', '{(,)}', '{(,)}', '{(,)}', '{empty,NULL,"(,)"}'),
  ('[1,5]', '(1,5]', '(1.50,NaN]', '[-infinity,infinity]', '["2024-01-01 00:00:00+05:30",)', '[infinity,infinity]', '[-0,NaN)', '{[1,3),[5,7)}', '{[1.10,2)}', '{["2024-01-01 10:00","2024-01-02"]}', '{"[1,3)"}'),
  ('[2147483646,2147483647)', '[9223372036854775806,9223372036854775807)', '(-Infinity,Infinity)', '("0044-03-15 BC",)', NULL, '[0001-01-01,9999-12-31)', NULL, NULL, NULL, NULL, NULL);
CREATE TABLE nested_types (id int PRIMARY KEY, a inner_, b outer_, c outers, d whole_, e whole_[]);
INSERT INTO nested_types VALUES (1, NULL, NULL, NULL, NULL, NULL), (2, ROW(NULL, NULL, NULL, NULL), ROW(NULL, '', '{}', 0), '{}', ROW(NULL, NULL, NULL, NULL, NULL), '{NULL}'),
  (3, ROW('{1,2}', E'a"b\\c,()\n', ARRAY['it''s "ok", {NULL}', NULL]::mood[], 149), ROW('{NULL}', 'NULL', '{""}', 'NaN'), ARRAY[ROW('{1}', 'x', '{}', 1)::inner_, NULL]::outers,
   ROW(ARRAY[ROW('{1}', 'y', '{sad}', 100)::inner_]::outers, '[1,3)', '{[1,3)}', '{2024-01-01 10:00,NULL}', ROW('{7}', '"', NULL, 5)), NULL),
  (4, ROW('{{1,2}}', 'lost', NULL, NULL), NULL, NULL, ROW(NULL, NULL, NULL, '{infinity}', NULL), NULL);

--- step
UPDATE arrays SET a = a || 1, b = b || 'x'::text WHERE id IN (1, 4);

ALTER TYPE mood ADD VALUE 'new' BEFORE 'sad';

INSERT INTO arrays (id, e) VALUES (5, '{new,sad}');

ALTER TYPE inner_ ADD ATTRIBUTE f timestamp;

UPDATE nested_types SET b = ROW('{1}', 'b', '{new}', 1234567, '2024-01-01') WHERE id = 3;

ALTER TYPE mood RENAME VALUE 'sad' TO 'gloomy';

UPDATE ranges SET id = int4range(upper(id), upper(id) + 3) WHERE id = '[1,6)';

ALTER TYPE inner_ DROP ATTRIBUTE "C d";

ALTER TABLE arrays ALTER a TYPE bigint[], ALTER c TYPE numeric(9,2)[], ALTER i TYPE timestamp[];

INSERT INTO arrays (id, a, c, i) VALUES (6, '{9223372036854775807}', '{1234567.89}', '{2024-01-01 10:00}');

=== kinds_of_tables
CREATE TABLE parent (id int PRIMARY KEY, a text);
CREATE TABLE child (b int, PRIMARY KEY (id)) INHERITS (parent);
CREATE TABLE grandchild (c int, PRIMARY KEY (id)) INHERITS (child);
INSERT INTO parent VALUES (1, 'parent');
INSERT INTO child VALUES (1, 'child', 2);
INSERT INTO grandchild VALUES (1, 'grandchild', 2, 3);
CREATE TABLE tree (region text, id int, day date, a text, PRIMARY KEY (region, id, day)) PARTITION BY LIST (region);
CREATE TABLE tree_n PARTITION OF tree FOR VALUES IN ('n', 'ü') PARTITION BY RANGE (day);
CREATE TABLE tree_n_old PARTITION OF tree_n FOR VALUES FROM (MINVALUE) TO ('2024-01-01');
CREATE TABLE tree_n_new PARTITION OF tree_n FOR VALUES FROM ('2024-01-01') TO (MAXVALUE) PARTITION BY HASH (id);
CREATE TABLE tree_n_new_0 PARTITION OF tree_n_new FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE tree_n_new_1 (a text, day date NOT NULL, id int NOT NULL, region text NOT NULL);
ALTER TABLE tree_n_new ATTACH PARTITION tree_n_new_1 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE TABLE tree_d PARTITION OF tree DEFAULT;
INSERT INTO tree SELECT CASE i % 3 WHEN 0 THEN 'n' WHEN 1 THEN 'ü' ELSE 'other' END, i, date '2023-12-20' + i, 'a' || i FROM generate_series(1, 40) i;
CREATE TABLE counted (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int GENERATED BY DEFAULT AS IDENTITY, b serial, c int, d int GENERATED ALWAYS AS (c * 2) STORED);
INSERT INTO counted (c) SELECT i FROM generate_series(1, 5) i;
CREATE TABLE expressed (id int PRIMARY KEY, a text, b text);
CREATE UNIQUE INDEX ON expressed (lower(a));
CREATE UNIQUE INDEX ON expressed ((a || b)) WHERE b IS NOT NULL;
CREATE INDEX ON expressed (id) INCLUDE (a);
INSERT INTO expressed VALUES (1, 'A', NULL), (2, 'b', 'B');
CREATE TABLE by_index (id int NOT NULL, a text NOT NULL, b text);
CREATE UNIQUE INDEX by_index_key ON by_index (a DESC, id) INCLUDE (b);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_key;
INSERT INTO by_index VALUES (1, 'a', 'b'), (1, 'b', NULL);
CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, a text);
ALTER TABLE deferred REPLICA IDENTITY FULL;
INSERT INTO deferred SELECT i, repeat(md5(i::text), 200) FROM generate_series(1, 9) i;
CREATE TABLE full_ (id int PRIMARY KEY, a text, b float8);
ALTER TABLE full_ REPLICA IDENTITY FULL;
INSERT INTO full_ VALUES (1, NULL, 'NaN'), (2, repeat('x', 9000), '-0');
CREATE TABLE ruled (id int PRIMARY KEY, a text);
CREATE TABLE ruled_log (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a text);
CREATE RULE ruled_i AS ON INSERT TO ruled DO ALSO INSERT INTO ruled_log (a) VALUES ('rule ' || NEW.id);
CREATE FUNCTION triggered() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.a := NEW.a || ' triggered'; RETURN NEW; END$$;
CREATE TRIGGER ruled_t BEFORE INSERT OR UPDATE ON ruled FOR EACH ROW EXECUTE FUNCTION triggered();
INSERT INTO ruled VALUES (1, 'one');
CREATE VIEW seen AS SELECT * FROM ruled WITH CHECK OPTION;
CREATE TABLE a2345678901234567890123456789012345678901234567890123456789012x ("c2345678901234567890123456789012345678901234567890123456789012y" int PRIMARY KEY, "äöüäöüäöüäöüäöüäöüäöüäöüäöüäöüx" text);
INSERT INTO a2345678901234567890123456789012345678901234567890123456789012x VALUES (1, 'a');
CREATE TABLE keyed_by (a int, b text, c uuid, d date, e boolean, PRIMARY KEY (b, a, d, c, e));
INSERT INTO keyed_by VALUES (1, 'é', '0b5e5b0c-2f3e-4b0a-9c5d-9d3f7f3f7f3f', '2024-02-29', true), (1, 'é ', '0b5e5b0c-2f3e-4b0a-9c5d-9d3f7f3f7f3f', '2024-02-29', false);
CREATE TABLE none_but_key (id int PRIMARY KEY);
INSERT INTO none_but_key VALUES (1), (2);
CREATE TYPE row_ AS (a int[], b text);
CREATE TABLE typed_ OF row_ (b WITH OPTIONS NOT NULL, PRIMARY KEY (b));
INSERT INTO typed_ (b) VALUES ('typed');
CREATE TABLE refers (id int PRIMARY KEY, to_ int REFERENCES none_but_key ON DELETE CASCADE ON UPDATE SET NULL);
INSERT INTO refers VALUES (1, 1), (2, 2);
CREATE TABLE excluded_ (id int PRIMARY KEY, during int4range, EXCLUDE USING gist (during WITH &&));
INSERT INTO excluded_ VALUES (1, '[1,3)'), (2, '[3,5)');

--- step
UPDATE parent SET a = a || ' changed';

INSERT INTO grandchild VALUES (2, 'g', 3, 4);

ALTER TABLE parent ADD d timestamp DEFAULT '2024-01-01';

UPDATE tree SET day = day + 20, region = CASE region WHEN 'n' THEN 'other' ELSE 'n' END;

ALTER TABLE tree DETACH PARTITION tree_d;

UPDATE tree_d SET a = 'alone';

ALTER TABLE tree ATTACH PARTITION tree_d DEFAULT;

TRUNCATE tree_n_old;

INSERT INTO counted (c) VALUES (6);
UPDATE counted SET c = c + 1, id = DEFAULT WHERE c = 3;

UPDATE by_index SET a = a || 'x', b = NULL;

UPDATE deferred SET id = 10 - id;

UPDATE full_ SET b = b, a = a || 'y';

INSERT INTO seen VALUES (2, 'two');
UPDATE ruled SET a = 'again';

DELETE FROM none_but_key WHERE id = 1;

UPDATE none_but_key SET id = 3;

INSERT INTO none_but_key VALUES (3) ON CONFLICT DO NOTHING;

INSERT INTO expressed VALUES (1, 'again', 'x') ON CONFLICT (id) DO UPDATE SET b = EXCLUDED.b;

BEGIN; SAVEPOINT a; DELETE FROM excluded_; ROLLBACK TO a; UPDATE excluded_ SET during = '[9,10)' WHERE id = 1; SAVEPOINT b; INSERT INTO excluded_ VALUES (3, '[20,)'); RELEASE b; COMMIT;

TRUNCATE parent CASCADE;

INSERT INTO parent VALUES (3, 'after', NULL);

ALTER TYPE row_ ADD ATTRIBUTE c timestamp CASCADE;

UPDATE typed_ SET c = '2024-01-01 10:00';

=== alterations
CREATE TABLE alter_columns (id int PRIMARY KEY, a int, b text, c int, d date, e int DEFAULT 5);
INSERT INTO alter_columns SELECT i, i, i::text, i, '2024-01-01', i FROM generate_series(1, 5) i;
CREATE TABLE alter_key (id int PRIMARY KEY, other int NOT NULL UNIQUE, a text);
INSERT INTO alter_key SELECT i, -i, i::text FROM generate_series(1, 5) i;
CREATE TABLE alter_storage (id int PRIMARY KEY, a text);
INSERT INTO alter_storage SELECT i, repeat(md5(i::text), 200) FROM generate_series(1, 5) i;
CREATE TABLE alter_name (id int PRIMARY KEY, a text);
INSERT INTO alter_name VALUES (1, 'a');
CREATE SCHEMA elsewhere;
CREATE TABLE made_again (id int PRIMARY KEY, a text);
INSERT INTO made_again VALUES (1, 'first');
CREATE TABLE gone (id int PRIMARY KEY, a text);
INSERT INTO gone VALUES (1, 'gone');

--- step
ALTER TABLE alter_columns ADD f timestamp, ADD g int NOT NULL DEFAULT 7, ADD h uuid DEFAULT '0b5e5b0c-2f3e-4b0a-9c5d-9d3f7f3f7f3f', ADD i float8 DEFAULT random();

UPDATE alter_columns SET f = '2024-01-01 10:00' WHERE id = 1;

ALTER TABLE alter_columns RENAME a TO z;
ALTER TABLE alter_columns RENAME c TO a;

UPDATE alter_columns SET z = 100, a = 200 WHERE id = 2;

ALTER TABLE alter_columns DROP b, ALTER e DROP DEFAULT, ALTER e SET DEFAULT 9, ALTER z SET NOT NULL, ADD CHECK (id > 0), ALTER z SET STATISTICS 10;
ALTER TABLE alter_columns ALTER z DROP NOT NULL;

INSERT INTO alter_columns (id) VALUES (6);

ALTER TABLE alter_columns ALTER d TYPE timestamptz USING d + time '10:00', ALTER z TYPE text USING 'z' || z;

ALTER TABLE alter_columns ADD b int GENERATED ALWAYS AS (id * 2) STORED, ALTER g DROP DEFAULT;
ALTER TABLE alter_columns ALTER g ADD GENERATED BY DEFAULT AS IDENTITY (START 100);

INSERT INTO alter_columns (id) VALUES (7);

ALTER TABLE alter_columns ALTER b DROP EXPRESSION;

UPDATE alter_columns SET b = 5 WHERE id = 7;

ALTER TABLE alter_key DROP CONSTRAINT alter_key_pkey, ADD PRIMARY KEY (other);

UPDATE alter_key SET id = 1, other = other - 10;

ALTER TABLE alter_key REPLICA IDENTITY FULL;

DELETE FROM alter_key WHERE other = -11;

ALTER TABLE alter_storage ALTER a SET STORAGE EXTERNAL, SET (fillfactor = 50, toast_tuple_target = 200), ALTER a SET COMPRESSION pglz, CLUSTER ON alter_storage_pkey;

UPDATE alter_storage SET id = id + 10 WHERE id < 3;

CLUSTER alter_storage;

VACUUM FULL alter_storage;

UPDATE alter_storage SET a = 'short' WHERE id = 4;

ALTER TABLE alter_storage ENABLE ROW LEVEL SECURITY, OWNER TO CURRENT_USER, DISABLE TRIGGER ALL;

ALTER TABLE alter_name RENAME TO alter_name_2;

INSERT INTO alter_name_2 VALUES (2, 'b');

ALTER TABLE alter_name_2 SET SCHEMA elsewhere;

INSERT INTO elsewhere.alter_name_2 VALUES (3, 'c');

DROP TABLE made_again;

CREATE TABLE made_again (a timestamp PRIMARY KEY, id text);
INSERT INTO made_again VALUES ('2024-01-01', 'second');

DROP TABLE gone;

CREATE TABLE as_select AS SELECT 1 AS id, 'a'::text AS a;
ALTER TABLE as_select ADD PRIMARY KEY (id);

INSERT INTO as_select VALUES (2, 'b');

CREATE TABLE liked (LIKE alter_storage INCLUDING ALL);
INSERT INTO liked SELECT * FROM alter_storage;
