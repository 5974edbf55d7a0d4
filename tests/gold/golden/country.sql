WITH
-- people.bought: public.orders
n2_bought AS (
  SELECT
    k0,
    transform(array_sort(collect_list(named_struct('n', n, 'item', item)), (a, b) -> a.n - b.n), e -> e.item) AS item
  FROM (
    SELECT
      `t`.`customer_id` AS k0,
      row_number() OVER (PARTITION BY `t`.`customer_id` ORDER BY `t`.`id` ASC NULLS LAST) AS n,
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
    transform(array_sort(collect_list(named_struct('n', n, 'item', item)), (a, b) -> a.n - b.n), e -> e.item) AS item
  FROM (
    SELECT
      `t`.`country_id` AS k0,
      row_number() OVER (PARTITION BY `t`.`country_id` ORDER BY `t`.`id` ASC NULLS LAST) AS n,
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
