CREATE TABLE customers (
    id bigserial PRIMARY KEY,
    name text NOT NULL,
    email text,
    tier text,
    balance numeric(14, 2),
    created_at timestamptz DEFAULT now(),
    meta jsonb,
    active boolean
);
CREATE TABLE orders (
    id bigserial PRIMARY KEY,
    customer_id bigint,
    status text,
    total numeric(12, 2),
    placed_at timestamptz,
    note text,
    tags text[],
    qty int,
    price float8,
    uid uuid
);
