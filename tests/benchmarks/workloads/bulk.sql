-- One million changes in four transactions: 200,000 customers, 600,000 orders, a third of them updated, a tenth deleted.
INSERT INTO customers (name, email, tier, balance, meta, active)
SELECT 'Customer ' || n,
       'user' || n || '@example.com',
       (ARRAY['free', 'pro', 'enterprise'])[1 + n % 3],
       (n % 100000) / 7.0,
       jsonb_build_object('k', n, 'lang', 'en'),
       n % 2 = 0
FROM generate_series(1, 200000) AS n;
INSERT INTO orders (customer_id, status, total, placed_at, note, tags, qty, price, uid)
SELECT 1 + n % 200000,
       (ARRAY['new', 'paid', 'shipped', 'done'])[1 + n % 4],
       (n % 1000) * 1.37,
       now(),
       'note for order ' || n,
       ARRAY['a', 'b' || n % 10],
       n % 7,
       n * 0.123,
       gen_random_uuid()
FROM generate_series(1, 600000) AS n;
UPDATE orders SET status = 'paid', total = total + 1 WHERE id % 3 = 0;
DELETE FROM orders WHERE id % 10 = 0;
