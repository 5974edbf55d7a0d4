WITH
-- weight: logistics.parcels
n1_weight AS (
  SELECT
    `t`.`order_id` AS k0,
    `t`.`line` AS k1,
    CASE WHEN count(`t`.`weight`) > 0 THEN aggregate(array_sort(collect_list(CAST(`t`.`weight` AS DOUBLE))), -0D, (total, term) -> total + term) END AS m0,
    CASE WHEN count(`t`.`weight`) > 0 THEN aggregate(array_sort(collect_list(CAST(`t`.`weight` AS DOUBLE))), -0D, (total, term) -> total + term) / count(`t`.`weight`) END AS m1
  FROM logistics.parcels AS t
  WHERE (`t`.`order_id` IS NOT NULL)
    AND (`t`.`line` IS NOT NULL)
  GROUP BY `t`.`order_id`, `t`.`line`
),
-- order.customer: public.customers
n3_customer AS (
  SELECT
    `t`.`id` AS k0,
    named_struct('email', `t`.`email`) AS item
  FROM public.customers AS t
),
-- order: public.orders
n2_order AS (
  SELECT
    `t`.`id` AS k0,
    named_struct('status', `t`.`status`, 'customer', n3_customer.item) AS item
  FROM public.orders AS t
  LEFT JOIN n3_customer ON n3_customer.k0 = `t`.`customer_id`
)
SELECT
  `t`.`line` AS `number`,
  `t`.`order_id` AS `order_id`,
  n1_weight.m0 AS `weight`,
  n1_weight.m1 AS `mean`,
  n2_order.item AS `order`
FROM public.order_items AS t
LEFT JOIN n1_weight ON n1_weight.k0 = `t`.`order_id` AND n1_weight.k1 = `t`.`line`
LEFT JOIN n2_order ON n2_order.k0 = `t`.`order_id`
