-- A rental shop of the shape and size that sample databases have: 15 tables, 47,000 rows, two stores that
-- half of everything hangs on. Every value follows from its row's number.

CREATE TYPE rating AS ENUM ('everybody', 'guided', 'teenagers', 'adults');
CREATE DOMAIN year AS integer CHECK (VALUE BETWEEN 1901 AND 2155);

CREATE FUNCTION words(seed bigint, number int) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT string_agg(
        (ARRAY['amber', 'bridge', 'copper', 'dancer', 'ember', 'forest', 'garden', 'harbour', 'island', 'juniper',
               'keeper', 'lantern', 'mirror', 'north', 'orchard', 'pilot', 'quarry', 'river', 'silver', 'thunder',
               'umbrella', 'valley', 'winter', 'yonder', 'zephyr', 'anchor', 'beacon', 'cinder', 'drifter', 'echo'])
        [1 + ((seed * 7919 + n * 104729 + seed * n) % 30)], ' ')
    FROM generate_series(1, number) AS n
$$;

CREATE TABLE language (
    language_id serial PRIMARY KEY, name char(20) NOT NULL, last_update timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE country (
    country_id serial PRIMARY KEY, country text NOT NULL, last_update timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE city (
    city_id serial PRIMARY KEY, city text NOT NULL, country_id int NOT NULL REFERENCES country,
    last_update timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE address (
    address_id serial PRIMARY KEY, address text NOT NULL, address2 text, district text NOT NULL,
    city_id int NOT NULL REFERENCES city, postal_code text, phone text NOT NULL,
    last_update timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE category (
    category_id serial PRIMARY KEY, name text NOT NULL, last_update timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE actor (
    actor_id serial PRIMARY KEY, first_name text NOT NULL, last_name text NOT NULL,
    last_update timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE film (
    film_id serial PRIMARY KEY, title text NOT NULL, description text, release_year year,
    language_id int NOT NULL REFERENCES language, original_language_id int REFERENCES language,
    rental_duration smallint NOT NULL DEFAULT 3, rental_rate numeric(4,2) NOT NULL DEFAULT 4.99, length smallint,
    replacement_cost numeric(5,2) NOT NULL DEFAULT 19.99, rating rating DEFAULT 'everybody',
    last_update timestamptz NOT NULL DEFAULT now(), special_features text[], fulltext tsvector NOT NULL
);
CREATE TABLE film_actor (
    actor_id int NOT NULL REFERENCES actor, film_id int NOT NULL REFERENCES film,
    last_update timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (actor_id, film_id)
);
CREATE TABLE film_category (
    film_id int NOT NULL REFERENCES film, category_id int NOT NULL REFERENCES category,
    last_update timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (film_id, category_id)
);
CREATE TABLE store (
    store_id serial PRIMARY KEY, manager_staff_id int NOT NULL UNIQUE,
    address_id int NOT NULL REFERENCES address, last_update timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE staff (
    staff_id serial PRIMARY KEY, first_name text NOT NULL, last_name text NOT NULL,
    address_id int NOT NULL REFERENCES address, email text, store_id int NOT NULL REFERENCES store,
    active boolean NOT NULL DEFAULT true, username text NOT NULL, password text,
    last_update timestamptz NOT NULL DEFAULT now(), picture bytea
);
CREATE TABLE customer (
    customer_id serial PRIMARY KEY, store_id int NOT NULL REFERENCES store, first_name text NOT NULL,
    last_name text NOT NULL, email text, address_id int NOT NULL REFERENCES address,
    activebool boolean NOT NULL DEFAULT true, create_date date NOT NULL DEFAULT CURRENT_DATE,
    last_update timestamptz DEFAULT now(), active int
);
CREATE TABLE inventory (
    inventory_id serial PRIMARY KEY, film_id int NOT NULL REFERENCES film, store_id int NOT NULL REFERENCES store,
    last_update timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE rental (
    rental_id serial PRIMARY KEY, rental_date timestamptz NOT NULL, inventory_id int NOT NULL REFERENCES inventory,
    customer_id int NOT NULL REFERENCES customer, return_date timestamptz,
    staff_id int NOT NULL REFERENCES staff, last_update timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE payment (
    payment_id serial, customer_id int NOT NULL REFERENCES customer, staff_id int NOT NULL REFERENCES staff,
    rental_id int NOT NULL REFERENCES rental, amount numeric(5,2) NOT NULL, payment_date timestamptz NOT NULL,
    PRIMARY KEY (payment_date, payment_id)
) PARTITION BY RANGE (payment_date);
CREATE TABLE payment_first PARTITION OF payment FOR VALUES FROM ('2022-01-01') TO ('2022-04-01');
CREATE TABLE payment_second PARTITION OF payment FOR VALUES FROM ('2022-04-01') TO ('2022-08-01');

INSERT INTO language (name, last_update) SELECT 'language ' || n, '2022-02-15' FROM generate_series(1, 6) AS n;
INSERT INTO country (country, last_update) SELECT words(n, 2), '2022-02-15' FROM generate_series(1, 109) AS n;
INSERT INTO city (city, country_id, last_update)
    SELECT words(n, 2), 1 + n % 109, '2022-02-15' FROM generate_series(1, 600) AS n;
INSERT INTO address (address, address2, district, city_id, postal_code, phone, last_update)
    SELECT n || ' ' || words(n, 2) || ' street', '', words(n + 1, 1), 1 + n % 600, (10000 + n)::text,
           (600000000000 + n * 7919)::text, '2022-02-15'
    FROM generate_series(1, 603) AS n;
INSERT INTO category (name, last_update) SELECT words(n, 1) || n, '2022-02-15' FROM generate_series(1, 16) AS n;
INSERT INTO actor (first_name, last_name, last_update)
    SELECT words(n, 1), words(n + 5, 1), '2022-02-15' FROM generate_series(1, 200) AS n;
INSERT INTO film (title, description, release_year, language_id, rental_duration, rental_rate, length,
                  replacement_cost, rating, last_update, special_features, fulltext)
    SELECT words(n, 2), 'A tale of ' || words(n + 3, 14), 2006, 1 + n % 6, 3 + n % 5, 0.99 + n % 5, 46 + n % 140,
           9.99 + n % 20, (enum_range(NULL::rating))[1 + n % 4], '2022-02-15',
           (ARRAY['trailers', 'scenes', 'commentary'])[1:1 + n % 3],
           to_tsvector('simple', words(n, 2) || ' ' || words(n + 3, 14))
    FROM generate_series(1, 1000) AS n;
INSERT INTO film_actor (actor_id, film_id, last_update)
    SELECT 1 + (f * 37 + n * 31) % 200, f, '2022-02-15'
    FROM generate_series(1, 1000) AS f, generate_series(1, 6) AS n WHERE n <= 5 OR f % 2 = 0
    ON CONFLICT DO NOTHING;
INSERT INTO film_category (film_id, category_id, last_update)
    SELECT n, 1 + n % 16, '2022-02-15' FROM generate_series(1, 1000) AS n;
INSERT INTO store (manager_staff_id, address_id, last_update) VALUES (1, 1, '2022-02-15'), (2, 2, '2022-02-15');
INSERT INTO staff (first_name, last_name, address_id, email, store_id, username, password, last_update, picture)
    SELECT words(n, 1), words(n + 5, 1), n + 2, 'staff' || n || '@example.com', n, 'staff' || n, md5(n::text),
           '2022-05-16', decode(repeat(md5(n::text), 100), 'hex')
    FROM generate_series(1, 2) AS n;
ALTER TABLE store ADD FOREIGN KEY (manager_staff_id) REFERENCES staff;
INSERT INTO customer (store_id, first_name, last_name, email, address_id, create_date, last_update, active)
    SELECT 1 + n % 2, words(n, 1), words(n + 5, 1), words(n, 1) || '.' || n || '@example.com', 4 + n, '2022-02-14',
           '2022-02-15', 1
    FROM generate_series(1, 599) AS n;
INSERT INTO inventory (film_id, store_id, last_update)
    SELECT 1 + n % 958, 1 + n % 2, '2022-02-15' FROM generate_series(1, 4581) AS n;
INSERT INTO rental (rental_date, inventory_id, customer_id, return_date, staff_id, last_update)
    SELECT '2022-01-24'::timestamptz + n * interval '14 minutes', 1 + (n * 7919) % 4581, 1 + (n * 104729) % 599,
           '2022-01-29'::timestamptz + n * interval '14 minutes', 1 + n % 2, '2022-02-15'
    FROM generate_series(1, 16044) AS n;
INSERT INTO payment (customer_id, staff_id, rental_id, amount, payment_date)
    SELECT 1 + (n * 104729) % 599, 1 + n % 2, 1 + n % 16044, 0.99 + n % 9,
           '2022-01-24'::timestamptz + n * interval '14 minutes'
    FROM generate_series(1, 16049) AS n;
