-- Tables of the recorded history; the publication carries all of them.
CREATE SCHEMA sales;
CREATE SCHEMA "Weird ""schema";
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN price AS numeric(10,2) CHECK (VALUE >= 0);
CREATE TYPE address AS (street text, city text);
CREATE TABLE kinds (
    id bigint PRIMARY KEY, b boolean, i2 smallint, i4 int, f4 real, f8 double precision, n numeric,
    np numeric(12,3), t text, v varchar(40), c char(8), by bytea, d date, ts timestamp, tz timestamptz, ti time,
    tt timetz, iv interval, u uuid, j json, jb jsonb, ar int[], ta text[], m mood, p price, a address, r int4range,
    l pg_lsn, ip inet);
CREATE TABLE by_default (id int PRIMARY KEY, v text);
CREATE TABLE by_full (id int PRIMARY KEY, v text, n int);
ALTER TABLE by_full REPLICA IDENTITY FULL;
CREATE TABLE by_index (id int PRIMARY KEY, code text NOT NULL UNIQUE, v text);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_code_key;
CREATE TABLE by_nothing (id int, v text);
ALTER TABLE by_nothing REPLICA IDENTITY NOTHING;
CREATE TABLE pairs (a int, b text, v text, PRIMARY KEY (a, b));
CREATE TABLE toasted (id int PRIMARY KEY, big text, n int, other text);
ALTER TABLE toasted ALTER big SET STORAGE EXTERNAL, ALTER other SET STORAGE EXTERNAL;
CREATE TABLE toasted_full (id int PRIMARY KEY, big text, n int);
ALTER TABLE toasted_full ALTER big SET STORAGE EXTERNAL, REPLICA IDENTITY FULL;
CREATE TABLE "Weird ""schema"."Täble .x" ("Id" int PRIMARY KEY, "a ""quoted"" cölumn" text, "数" text);
CREATE TABLE no_columns ();
CREATE TABLE sales.parts (id int, at date, v text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
CREATE TABLE sales.parts_1 PARTITION OF sales.parts FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
CREATE TABLE sales.parts_2 (v text, at date NOT NULL, id int NOT NULL);
ALTER TABLE sales.parts ATTACH PARTITION sales.parts_2 FOR VALUES FROM ('2025-01-01') TO ('2026-01-01');
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (id int PRIMARY KEY, parent_id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE generated (id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) STORED);
DO $$ BEGIN
    EXECUTE (SELECT 'CREATE TABLE wide (id int PRIMARY KEY, ' || string_agg('c' || i || ' int', ', ' ORDER BY i)
             FROM generate_series(1, 999) i) || ')';
END $$;
CREATE TABLE shaped (id int PRIMARY KEY, a int, b text);
CREATE TABLE excluded (id int PRIMARY KEY, v text);
CREATE TABLE bulk (id int PRIMARY KEY, a int, t text, n numeric);
CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root = true);
