WITH
-- people.bought: public.orders
n2_bought AS (
  SELECT
    k0,
    sort_array(collect_list(named_struct('o0', o0, 'item', item))).item AS item
  FROM (
    SELECT /*+ REPARTITION(k0) */
      `t`.`customer_id` AS k0,
      `t`.`id` AS o0,
      `t`.`total` AS item
    FROM public.orders AS t
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
    SELECT /*+ REPARTITION(k0) */
      `t`.`country_id` AS k0,
      `t`.`id` AS o0,
      named_struct('email', `t`.`email`, 'bought', coalesce(n2_bought.item, array())) AS item
    FROM public.customers AS t
    LEFT JOIN n2_bought ON n2_bought.k0 = `t`.`id`
    WHERE `t`.`country_id` IS NOT NULL
  ) AS s
  GROUP BY k0
)
SELECT
  `t`.`name` AS `name`,
  coalesce(n1_people.item, array()) AS `people`,
  named_struct('id', `t`.`id`) AS `_key`
FROM public.countries AS t
LEFT JOIN n1_people ON n1_people.k0 = `t`.`id`
WHERE `t`.`code` <> 'IT'
