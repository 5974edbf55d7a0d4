-- Composite, uuid and text keys; text that looks like NULL, like JSON, like CSV.
CREATE TABLE composite (tenant text, id bigint, name text, PRIMARY KEY (tenant, id));
CREATE TABLE by_uuid (id uuid PRIMARY KEY, n int);
CREATE TABLE by_text (id text PRIMARY KEY, n int);
CREATE TABLE only_a_key (id numeric(10,4) PRIMARY KEY);
INSERT INTO composite SELECT 't' || i % 3, i, 'n' FROM generate_series(1, 30) i;
INSERT INTO by_uuid SELECT md5(i::text)::uuid, i FROM generate_series(1, 30) i;
INSERT INTO by_text VALUES ('', 0), (' ', 1), ('NULL', 2), ('é', 3), ('e', 4), ('E', 5), (E'a,b"c\\d\n\t', 6), ('\N', 7);
INSERT INTO only_a_key VALUES (0), (-1.5), (99999.9999);

--- step
UPDATE composite SET tenant = 'x' WHERE id < 5;

DELETE FROM composite WHERE tenant = 't1';

UPDATE by_uuid SET n = -n WHERE n < 10;

UPDATE by_text SET n = n + 10;

UPDATE only_a_key SET id = id + 0.0001;

--- step
UPDATE composite SET id = id + 1000, name = NULL WHERE tenant = 'x';

DELETE FROM by_text WHERE id = '';

UPDATE by_text SET id = 'null' WHERE id = 'NULL';
