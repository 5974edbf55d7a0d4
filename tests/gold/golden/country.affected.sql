SELECT k0, collect_set(place) AS places, coalesce(max(side) = 'new', false) AS came FROM (
  SELECT try_cast(v0 AS SMALLINT) AS k0, 0 AS place, side FROM (
    -- public.countries
    SELECT any_value(`t`.`id`) AS v0, min(t._deltasmelt_side) AS side
    FROM images_of_countries AS t
    WHERE (`t`.`code` <> 'IT')
    GROUP BY `t`.`id`, to_json(struct(`t`.`code`, `t`.`name`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
  UNION ALL
  SELECT try_cast(v0 AS SMALLINT) AS k0, 1 AS place, NULL AS side FROM (
    -- people: public.customers
    SELECT any_value(`t`.`country_id`) AS v0
    FROM images_of_customers AS t
    GROUP BY `t`.`id`, to_json(struct(`t`.`country_id`, `t`.`email`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
  UNION ALL
  SELECT try_cast(v0 AS SMALLINT) AS k0, 2 AS place, NULL AS side FROM (
    -- people.bought: public.orders
    SELECT /*+ BROADCAST(c) */ `t`.`country_id` AS v0
    FROM public.customers AS t
    LEFT SEMI JOIN (
      SELECT any_value(`t`.`customer_id`) AS v0
      FROM images_of_orders AS t
      WHERE (`t`.`status` = 'paid')
      GROUP BY `t`.`id`, to_json(struct(`t`.`customer_id`, `t`.`status`, `t`.`total`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
      HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
    ) AS c ON `t`.`id` = c.v0
  )
)
WHERE k0 IS NOT NULL
GROUP BY k0
