-- Other types, all taken without USING: in place or by a copy, written anew by PostgreSQL or not. Of each class one; what becomes of
-- every pair is in tests/silver/schema/test_retypes.py.
CREATE TYPE spot AS (x numeric(5,-2), y int[]);
CREATE DOMAIN rounded AS numeric(5,-2);
CREATE TABLE scaled (id int PRIMARY KEY, a numeric(5,-2), b numeric(5,-2)[], c spot, d rounded, e numeric(2,5), f numeric(36,-2),
  g numeric(37,-2), h numeric(5,-2), i numeric(2,5)[], j numeric(5,2)[]);
INSERT INTO scaled SELECT i, 12345 * i, ARRAY[i * 149, NULL, -51], '(12345,"{1,NULL}")'::spot, i * 251, 0.00012, 10 ^ 37, 1234567, 'NaN',
  '{0.00099}', '{1.5}' FROM generate_series(1, 3) i;
CREATE TABLE scaled_in_place (id int PRIMARY KEY, a numeric(5,-2), e numeric(2,5));
INSERT INTO scaled_in_place VALUES (1, 1234567, 0.00012), (2, 'NaN', NULL);
CREATE TABLE dated (id int PRIMARY KEY, d date, e date);
INSERT INTO dated VALUES (1, '2024-02-29', '2024-02-29'), (2, 'infinity', '0044-03-15 BC'), (3, NULL, '9999-12-31');

--- step
UPDATE scaled SET a = -9999900, b = '{}' WHERE id = 1;

UPDATE dated SET e = '0001-01-01' WHERE id = 1;

ALTER TABLE scaled_in_place ALTER a TYPE numeric(7,-2), ALTER e TYPE numeric(9,5);

INSERT INTO scaled_in_place VALUES (3, 123456789, 1234.5);

ALTER TABLE scaled_in_place ADD at timestamp, ADD during tsrange, ADD all_of timestamp[];

INSERT INTO scaled_in_place VALUES (4, 1, 1, '2024-02-29 10:00', '[2024-01-01,)', '{2024-01-01 10:00,NULL}');

ALTER TABLE dated ALTER d TYPE timestamp;

INSERT INTO dated VALUES (4, '2024-02-29 10:00', '-infinity');

--- step
ALTER TABLE scaled ALTER f TYPE numeric(37,-2);

UPDATE scaled SET f = 12345678901234567890, g = 'NaN' WHERE id = 2;

ALTER TABLE dated ALTER d TYPE timestamptz, ALTER e TYPE timestamptz(0);

UPDATE dated SET d = '2024-02-29 10:00+02' WHERE id = 1;

--- step
ALTER TABLE scaled ALTER a TYPE int, ALTER b TYPE numeric(7,-2)[], ALTER c TYPE text;

INSERT INTO scaled (id, a, b, g, h) VALUES (4, 1, '{999999900}', 123456789, '-0');
