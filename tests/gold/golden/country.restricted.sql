WITH
-- rows of public.countries that belong to the roots
r0_countries AS (
  SELECT /*+ BROADCAST(r), REPARTITION(1) */ `t`.`id`, `t`.`code`, `t`.`name`
  FROM public.countries AS t
  LEFT SEMI JOIN affected AS r ON `t`.`id` = `r`.`k0`
),
-- rows of public.customers that belong to the roots
r1_customers AS (
  SELECT /*+ BROADCAST(r), REPARTITION(1) */ `t`.`id`, `t`.`email`, `t`.`country_id`
  FROM public.customers AS t
  LEFT SEMI JOIN affected AS r ON `t`.`country_id` = `r`.`k0`
),
-- rows of public.orders that belong to r1_customers
r2_orders AS (
  SELECT /*+ BROADCAST(r), REPARTITION(1) */ `t`.`id`, `t`.`customer_id`, `t`.`status`, `t`.`total`
  FROM public.orders AS t
  LEFT SEMI JOIN r1_customers AS r ON `t`.`customer_id` = `r`.`id`
),
-- people.bought: public.orders
n2_bought AS (
  SELECT
    k0,
    sort_array(collect_list(named_struct('o0', o0, 'item', item))).item AS item
  FROM (
    SELECT
      `t`.`customer_id` AS k0,
      `t`.`id` AS o0,
      `t`.`total` AS item
    FROM r2_orders AS t
    WHERE (`t`.`customer_id` IS NOT NULL)
      AND (`t`.`status` = 'paid')
  ) AS s
  GROUP BY k0
),
-- people: public.customers
n1_people AS (
  SELECT
    k0,
    sort_array(collect_list(named_struct('o0', o0, 'item', item))).item AS item
  FROM (
    SELECT
      `t`.`country_id` AS k0,
      `t`.`id` AS o0,
      named_struct('email', `t`.`email`, 'bought', coalesce(n2_bought.item, array())) AS item
    FROM r1_customers AS t
    LEFT JOIN n2_bought ON n2_bought.k0 = `t`.`id`
    WHERE `t`.`country_id` IS NOT NULL
  ) AS s
  GROUP BY k0
)
SELECT
  `t`.`name` AS `name`,
  coalesce(n1_people.item, array()) AS `people`,
  named_struct('id', `t`.`id`) AS `_key`
FROM r0_countries AS t
LEFT JOIN n1_people ON n1_people.k0 = `t`.`id`
WHERE `t`.`code` <> 'IT'
