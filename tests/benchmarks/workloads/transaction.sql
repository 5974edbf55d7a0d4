-- One transaction of ten million rows.
INSERT INTO orders (customer_id, status, total, placed_at, note, qty)
SELECT n % 1000, 'new', n % 100, now(), 'note for order ' || n, n % 7 FROM generate_series(1, 10000000) AS n;
