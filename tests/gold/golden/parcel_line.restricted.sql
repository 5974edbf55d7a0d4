WITH
-- rows of public.order_items that belong to the roots
r0_order_items AS (
  SELECT /*+ BROADCAST(r), REPARTITION(1) */ `t`.`order_id`, `t`.`line`
  FROM public.order_items AS t
  LEFT SEMI JOIN affected AS r ON `t`.`order_id` = `r`.`k0` AND `t`.`line` = `r`.`k1`
),
-- rows of logistics.parcels that belong to the roots
r1_logistics__parcels AS (
  SELECT /*+ BROADCAST(r), REPARTITION(1) */ `t`.`id`, `t`.`order_id`, `t`.`line`, `t`.`weight`
  FROM logistics.parcels AS t
  LEFT SEMI JOIN affected AS r ON `t`.`order_id` = `r`.`k0` AND `t`.`line` = `r`.`k1`
),
-- rows of public.orders that belong to the roots
r2_orders AS (
  SELECT /*+ BROADCAST(r), REPARTITION(1) */ `t`.`id`, `t`.`customer_id`, `t`.`status`
  FROM public.orders AS t
  LEFT SEMI JOIN affected AS r ON `t`.`id` = `r`.`k0`
),
-- rows of public.customers that belong to r2_orders
r3_customers AS (
  SELECT /*+ BROADCAST(r), REPARTITION(1) */ `t`.`id`, `t`.`email`
  FROM public.customers AS t
  LEFT SEMI JOIN r2_orders AS r ON `t`.`id` = `r`.`customer_id`
),
-- weight: logistics.parcels
n1_weight AS (
  SELECT
    `t`.`order_id` AS k0,
    `t`.`line` AS k1,
    CASE WHEN count(`t`.`weight`) > 0 THEN aggregate(array_sort(collect_list(CAST(`t`.`weight` AS DOUBLE))), -0D, (total, term) -> total + term) END AS m0,
    CASE WHEN count(`t`.`weight`) > 0 THEN aggregate(array_sort(collect_list(CAST(`t`.`weight` AS DOUBLE))), -0D, (total, term) -> total + term) / count(`t`.`weight`) END AS m1
  FROM r1_logistics__parcels AS t
  WHERE (`t`.`order_id` IS NOT NULL)
    AND (`t`.`line` IS NOT NULL)
  GROUP BY `t`.`order_id`, `t`.`line`
),
-- order.customer: public.customers
n3_customer AS (
  SELECT
    `t`.`id` AS k0,
    named_struct('email', `t`.`email`) AS item
  FROM r3_customers AS t
),
-- order: public.orders
n2_order AS (
  SELECT
    `t`.`id` AS k0,
    named_struct('status', `t`.`status`, 'customer', n3_customer.item) AS item
  FROM r2_orders AS t
  LEFT JOIN n3_customer ON n3_customer.k0 = `t`.`customer_id`
)
SELECT
  `t`.`line` AS `number`,
  `t`.`order_id` AS `order_id`,
  n1_weight.m0 AS `weight`,
  n1_weight.m1 AS `mean`,
  n2_order.item AS `order`
FROM r0_order_items AS t
LEFT JOIN n1_weight ON n1_weight.k0 = `t`.`order_id` AND n1_weight.k1 = `t`.`line`
LEFT JOIN n2_order ON n2_order.k0 = `t`.`order_id`
