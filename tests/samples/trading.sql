-- A trading company of the shape and size of small sample databases: 14 tables, 3,400 rows. Every value follows
-- from its row's number.

CREATE TABLE region (region_id smallint PRIMARY KEY, region_description text NOT NULL);
CREATE TABLE territory (
    territory_id varchar(20) PRIMARY KEY, territory_description text NOT NULL,
    region_id smallint NOT NULL REFERENCES region
);
CREATE TABLE state (
    state_id smallint PRIMARY KEY, name varchar(100), abbreviation char(2), part varchar(50)
);
CREATE TABLE category (
    category_id smallint PRIMARY KEY, name varchar(15) NOT NULL, description text, picture bytea
);
CREATE TABLE supplier (
    supplier_id smallint PRIMARY KEY, company varchar(40) NOT NULL, contact varchar(30), address varchar(60),
    city varchar(15), country varchar(15), phone varchar(24), homepage text
);
CREATE TABLE product (
    product_id smallint PRIMARY KEY, name varchar(40) NOT NULL, supplier_id smallint REFERENCES supplier,
    category_id smallint REFERENCES category, unit varchar(20), price real, in_stock smallint, discontinued int NOT NULL
);
CREATE TABLE customer_kind (kind_id char(5) PRIMARY KEY, description text);
CREATE TABLE customer (
    customer_id char(5) PRIMARY KEY, company varchar(40) NOT NULL, contact varchar(30), address varchar(60),
    city varchar(15), region varchar(15), postal_code varchar(10), country varchar(15), phone varchar(24)
);
CREATE TABLE customer_of_kind (
    customer_id char(5) REFERENCES customer, kind_id char(5) REFERENCES customer_kind,
    PRIMARY KEY (customer_id, kind_id)
);
CREATE TABLE employee (
    employee_id smallint PRIMARY KEY, last_name varchar(20) NOT NULL, first_name varchar(10) NOT NULL,
    title varchar(30), born date, hired date, city varchar(15), photo bytea, notes text,
    reports_to smallint REFERENCES employee
);
CREATE TABLE employee_territory (
    employee_id smallint REFERENCES employee, territory_id varchar(20) REFERENCES territory,
    PRIMARY KEY (employee_id, territory_id)
);
CREATE TABLE shipper (shipper_id smallint PRIMARY KEY, company varchar(40) NOT NULL, phone varchar(24));
CREATE TABLE "order" (
    order_id int PRIMARY KEY, customer_id char(5) REFERENCES customer, employee_id smallint REFERENCES employee,
    ordered date, required date, shipped date, ship_via smallint REFERENCES shipper, freight real,
    ship_name varchar(40), ship_city varchar(15), ship_country varchar(15)
);
CREATE TABLE order_detail (
    order_id int REFERENCES "order", product_id smallint REFERENCES product, unit_price real NOT NULL,
    quantity smallint NOT NULL, discount real NOT NULL, PRIMARY KEY (order_id, product_id)
);

INSERT INTO region SELECT n, 'region ' || n FROM generate_series(1, 4) AS n;
INSERT INTO territory SELECT (1000 + 17 * n)::text, 'territory ' || n, 1 + n % 4 FROM generate_series(1, 53) AS n;
INSERT INTO state SELECT n, 'state ' || n, chr(65 + n / 26) || chr(65 + n % 26), 'part ' || n % 5
    FROM generate_series(1, 51) AS n;
INSERT INTO category SELECT n, 'category ' || n, repeat('of goods ', n), sha256(n::text::bytea)
    FROM generate_series(1, 8) AS n;
INSERT INTO supplier SELECT n, 'supplier ' || n, 'contact ' || n, n || ' Dock Road', 'city ' || n % 20,
        'country ' || n % 16, '555-' || 1000 + n, CASE WHEN n % 4 = 0 THEN 'https://example.com/' || n END
    FROM generate_series(1, 29) AS n;
INSERT INTO product SELECT n, 'product ' || n, 1 + n % 29, 1 + n % 8, n % 24 || ' boxes', 2.5 + n % 40, n % 120, (n % 9 = 0)::int
    FROM generate_series(1, 77) AS n;
INSERT INTO customer_kind SELECT 'KIND' || n, 'customers of kind ' || n FROM generate_series(1, 5) AS n;
INSERT INTO customer SELECT 'C' || 1000 + n, 'company ' || n, 'contact ' || n, n || ' High Street', 'city ' || n % 40,
        CASE WHEN n % 3 = 0 THEN 'region ' || n % 7 END, (10000 + n)::text, 'country ' || n % 21, '555-' || 2000 + n
    FROM generate_series(1, 91) AS n;
INSERT INTO customer_of_kind SELECT 'C' || 1000 + n, 'KIND' || 1 + n % 5 FROM generate_series(1, 91) AS n WHERE n % 2 = 0;
INSERT INTO employee SELECT n, 'last ' || n, 'first ' || n, 'title ' || n % 3, date '1960-01-01' + 300 * n,
        date '2020-01-01' + 30 * n, 'city ' || n, sha256(n::text::bytea), repeat('a note ', 20 * n),
        CASE WHEN n > 2 THEN 1 + n % 2 WHEN n = 1 THEN 2 END
    FROM generate_series(1, 9) AS n;
INSERT INTO employee_territory SELECT 1 + n % 9, (1000 + 17 * n)::text FROM generate_series(1, 49) AS n;
INSERT INTO shipper SELECT n, 'shipper ' || n, '555-' || 3000 + n FROM generate_series(1, 6) AS n;
INSERT INTO "order" SELECT 10000 + n, 'C' || 1001 + n % 91, 1 + n % 9, date '2024-07-01' + n / 2, date '2024-07-29' + n / 2,
        CASE WHEN n % 40 <> 0 THEN date '2024-07-08' + n / 2 END, 1 + n % 3, (n % 700) / 3.0, 'company ' || 1 + n % 91,
        'city ' || n % 40, 'country ' || n % 21
    FROM generate_series(1, 830) AS n;
INSERT INTO order_detail SELECT 10000 + n, 1 + (n * 7 + 11 * line) % 77, 5 + n % 60, 1 + (n + line) % 90, (n % 5) / 20.0
    FROM generate_series(1, 830) AS n, generate_series(1, 3) AS line WHERE line < 3 OR n % 2 = 0
    ON CONFLICT DO NOTHING;
