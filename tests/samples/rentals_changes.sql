-- Some 380 changes of all kinds, scattered over the tables of rentals.sql.
UPDATE customer SET email = 'changed.' || customer_id || '@example.com', last_update = '2022-06-01'
    WHERE customer_id % 10 = 3;
UPDATE rental SET return_date = return_date + interval '1 day' WHERE rental_id % 160 = 7;
INSERT INTO rental (rental_date, inventory_id, customer_id, staff_id)
    SELECT '2022-07-10'::timestamptz + n * interval '1 minute', n * 40, n * 5, 1 + n % 2 FROM generate_series(1, 60) AS n;
INSERT INTO payment (customer_id, staff_id, rental_id, amount, payment_date)
    SELECT n * 5, 1 + n % 2, 16044 + n, 2.99, '2022-07-11' FROM generate_series(1, 60) AS n;
UPDATE film SET rental_rate = rental_rate + 1, description = description || ' again' WHERE film_id % 40 = 1;
UPDATE staff SET email = 'new.' || email;
DELETE FROM payment WHERE rental_id % 500 = 11;
DELETE FROM film_actor WHERE film_id % 500 = 5;
UPDATE address SET phone = '0' WHERE address_id % 100 = 1;
UPDATE country SET country = country || '!' WHERE country_id = 7;
