SELECT k0, k1, collect_set(place) AS places, coalesce(max(side) = 'new', false) AS came FROM (
  SELECT try_cast(v0 AS BIGINT) AS k0, try_cast(v1 AS SMALLINT) AS k1, 0 AS place, side FROM (
    -- public.order_items
    SELECT any_value(`t`.`order_id`) AS v0, any_value(`t`.`line`) AS v1, min(t._deltasmelt_side) AS side
    FROM images_of_order_items AS t
    GROUP BY `t`.`order_id`, `t`.`line`
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, try_cast(v1 AS SMALLINT) AS k1, 1 AS place, NULL AS side FROM (
    -- weight: logistics.parcels
    SELECT any_value(`t`.`order_id`) AS v0, any_value(`t`.`line`) AS v1
    FROM images_of_parcels AS t
    GROUP BY `t`.`id`, to_json(struct(`t`.`line`, `t`.`order_id`, `t`.`weight`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, try_cast(v1 AS SMALLINT) AS k1, 2 AS place, NULL AS side FROM (
    -- order: public.orders
    SELECT /*+ BROADCAST(c) */ `t`.`order_id` AS v0, `t`.`line` AS v1
    FROM public.order_items AS t
    LEFT SEMI JOIN (
      SELECT any_value(`t`.`id`) AS v0
      FROM images_of_orders AS t
      GROUP BY `t`.`id`, to_json(struct(`t`.`customer_id`, `t`.`status`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
      HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
    ) AS c ON `t`.`order_id` = c.v0
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, try_cast(v1 AS SMALLINT) AS k1, 3 AS place, NULL AS side FROM (
    -- order.customer: public.customers
    SELECT /*+ BROADCAST(c) */ `t`.`order_id` AS v0, `t`.`line` AS v1
    FROM public.order_items AS t
    LEFT SEMI JOIN (
      SELECT /*+ BROADCAST(c) */ `t`.`id` AS v0
      FROM public.orders AS t
      LEFT SEMI JOIN (
        SELECT any_value(`t`.`id`) AS v0
        FROM images_of_customers AS t
        GROUP BY `t`.`id`, to_json(struct(`t`.`email`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
        HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
      ) AS c ON `t`.`customer_id` = c.v0
    ) AS c ON `t`.`order_id` = c.v0
  )
)
WHERE k0 IS NOT NULL AND k1 IS NOT NULL
GROUP BY k0, k1
