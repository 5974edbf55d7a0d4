SELECT k0, collect_set(place) AS places, coalesce(max(side) = 'new', false) AS came FROM (
  SELECT try_cast(v0 AS BIGINT) AS k0, 0 AS place, side FROM (
    -- public.customers
    SELECT any_value(`t`.`id`) AS v0, min(t._deltasmelt_side) AS side
    FROM images_of_customers AS t
    GROUP BY `t`.`id`, to_json(struct(`t`.`billing_id`, `t`.`referred_by`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 1 AS place, NULL AS side FROM (
    -- home: public.addresses
    SELECT /*+ BROADCAST(c) */ `t`.`id` AS v0
    FROM public.customers AS t
    LEFT SEMI JOIN (
      SELECT any_value(`t`.`id`) AS v0
      FROM images_of_addresses AS t
      GROUP BY `t`.`id`, to_json(struct(`t`.`city`, `t`.`country_id`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
      HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
    ) AS c ON `t`.`billing_id` = c.v0
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 2 AS place, NULL AS side FROM (
    -- home.land: public.countries
    SELECT /*+ BROADCAST(c) */ `t`.`id` AS v0
    FROM public.customers AS t
    LEFT SEMI JOIN (
      SELECT /*+ BROADCAST(c) */ `t`.`id` AS v0
      FROM public.addresses AS t
      LEFT SEMI JOIN (
        SELECT any_value(`t`.`id`) AS v0
        FROM images_of_countries AS t
        GROUP BY `t`.`id`, to_json(struct(`t`.`code`, `t`.`name`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
        HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
      ) AS c ON `t`.`country_id` = c.v0
    ) AS c ON `t`.`billing_id` = c.v0
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 3 AS place, NULL AS side FROM (
    -- referrer: public.customers
    SELECT /*+ BROADCAST(c) */ `t`.`id` AS v0
    FROM public.customers AS t
    LEFT SEMI JOIN (
      SELECT any_value(`t`.`id`) AS v0
      FROM images_of_customers AS t
      GROUP BY `t`.`id`, to_json(struct(`t`.`email`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
      HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
    ) AS c ON `t`.`referred_by` = c.v0
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 4 AS place, NULL AS side FROM (
    -- referrer.orders: public.orders
    SELECT /*+ BROADCAST(c) */ `t`.`id` AS v0
    FROM public.customers AS t
    LEFT SEMI JOIN (
      SELECT /*+ BROADCAST(c) */ `t`.`id` AS v0
      FROM public.customers AS t
      LEFT SEMI JOIN (
        SELECT any_value(`t`.`customer_id`) AS v0
        FROM images_of_orders AS t
        GROUP BY `t`.`id`, to_json(struct(`t`.`customer_id`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
        HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
      ) AS c ON `t`.`id` = c.v0
    ) AS c ON `t`.`referred_by` = c.v0
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 5 AS place, NULL AS side FROM (
    -- referrer.by_status: public.orders
    SELECT /*+ BROADCAST(c) */ `t`.`id` AS v0
    FROM public.customers AS t
    LEFT SEMI JOIN (
      SELECT /*+ BROADCAST(c) */ `t`.`id` AS v0
      FROM public.customers AS t
      LEFT SEMI JOIN (
        SELECT any_value(`t`.`customer_id`) AS v0
        FROM images_of_orders AS t
        GROUP BY `t`.`id`, to_json(struct(`t`.`customer_id`, `t`.`status`, `t`.`total`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
        HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
      ) AS c ON `t`.`id` = c.v0
    ) AS c ON `t`.`referred_by` = c.v0
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 6 AS place, NULL AS side FROM (
    -- referrer.order_count: public.orders
    SELECT /*+ BROADCAST(c) */ `t`.`id` AS v0
    FROM public.customers AS t
    LEFT SEMI JOIN (
      SELECT /*+ BROADCAST(c) */ `t`.`id` AS v0
      FROM public.customers AS t
      LEFT SEMI JOIN (
        SELECT any_value(`t`.`customer_id`) AS v0
        FROM images_of_orders AS t
        GROUP BY `t`.`id`, to_json(struct(`t`.`customer_id`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
        HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
      ) AS c ON `t`.`id` = c.v0
    ) AS c ON `t`.`referred_by` = c.v0
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 7 AS place, NULL AS side FROM (
    -- referrer.stamps: public.orders
    SELECT /*+ BROADCAST(c) */ `t`.`id` AS v0
    FROM public.customers AS t
    LEFT SEMI JOIN (
      SELECT /*+ BROADCAST(c) */ `t`.`id` AS v0
      FROM public.customers AS t
      LEFT SEMI JOIN (
        SELECT any_value(`t`.`customer_id`) AS v0
        FROM images_of_orders AS t
        GROUP BY `t`.`id`, to_json(struct(`t`.`customer_id`, `t`.`placed_at`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
        HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
      ) AS c ON `t`.`id` = c.v0
    ) AS c ON `t`.`referred_by` = c.v0
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 8 AS place, NULL AS side FROM (
    -- orders: public.orders
    SELECT any_value(`t`.`customer_id`) AS v0
    FROM images_of_orders AS t
    GROUP BY `t`.`id`, to_json(struct(`t`.`customer_id`, `t`.`placed_at`, `t`.`status`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 9 AS place, NULL AS side FROM (
    -- orders.by_line: public.order_items
    SELECT /*+ BROADCAST(c) */ `t`.`customer_id` AS v0
    FROM public.orders AS t
    LEFT SEMI JOIN (
      SELECT any_value(`t`.`order_id`) AS v0
      FROM images_of_order_items AS t
      GROUP BY `t`.`order_id`, `t`.`line`, to_json(struct(`t`.`qty`, `t`.`sku`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
      HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
    ) AS c ON `t`.`id` = c.v0
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 10 AS place, NULL AS side FROM (
    -- by_status: public.orders
    SELECT any_value(`t`.`customer_id`) AS v0
    FROM images_of_orders AS t
    GROUP BY `t`.`id`, to_json(struct(`t`.`customer_id`, `t`.`status`, `t`.`total`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 11 AS place, NULL AS side FROM (
    -- names: public.tags
    SELECT /*+ BROADCAST(c) */ `t`.`customer_id` AS v0
    FROM public.customer_tags AS t
    LEFT SEMI JOIN (
      SELECT any_value(`t`.`id`) AS v0
      FROM images_of_tags AS t
      GROUP BY `t`.`id`, to_json(struct(`t`.`name`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
      HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
    ) AS c ON `t`.`tag_id` = c.v0
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 12 AS place, NULL AS side FROM (
    -- names: public.customer_tags
    SELECT any_value(`t`.`customer_id`) AS v0
    FROM images_of_customer_tags AS t
    GROUP BY `t`.`customer_id`, `t`.`tag_id`
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 13 AS place, NULL AS side FROM (
    -- first_status: public.orders
    SELECT any_value(`t`.`customer_id`) AS v0
    FROM images_of_orders AS t
    GROUP BY `t`.`id`, to_json(struct(`t`.`customer_id`, `t`.`placed_at`, `t`.`status`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 14 AS place, NULL AS side FROM (
    -- last_status: public.orders
    SELECT any_value(`t`.`customer_id`) AS v0
    FROM images_of_orders AS t
    GROUP BY `t`.`id`, to_json(struct(`t`.`customer_id`, `t`.`placed_at`, `t`.`status`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 15 AS place, NULL AS side FROM (
    -- last_paid: public.orders
    SELECT any_value(`t`.`customer_id`) AS v0
    FROM images_of_orders AS t
    WHERE (`t`.`status` = 'paid')
    GROUP BY `t`.`id`, to_json(struct(`t`.`customer_id`, `t`.`status`, `t`.`total`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 16 AS place, NULL AS side FROM (
    -- last_tag: public.tags
    SELECT /*+ BROADCAST(c) */ `t`.`customer_id` AS v0
    FROM public.customer_tags AS t
    LEFT SEMI JOIN (
      SELECT any_value(`t`.`id`) AS v0
      FROM images_of_tags AS t
      GROUP BY `t`.`id`, to_json(struct(`t`.`name`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
      HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
    ) AS c ON `t`.`tag_id` = c.v0
    WHERE `t`.`active`
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 17 AS place, NULL AS side FROM (
    -- last_tag: public.customer_tags
    SELECT any_value(`t`.`customer_id`) AS v0
    FROM images_of_customer_tags AS t
    WHERE (`t`.`active`)
    GROUP BY `t`.`customer_id`, `t`.`tag_id`, to_json(struct(`t`.`active`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 18 AS place, NULL AS side FROM (
    -- stamps: public.orders
    SELECT any_value(`t`.`customer_id`) AS v0
    FROM images_of_orders AS t
    GROUP BY `t`.`id`, to_json(struct(`t`.`customer_id`, `t`.`placed_at`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 19 AS place, NULL AS side FROM (
    -- pieces: public.order_items
    SELECT /*+ BROADCAST(c) */ `t`.`customer_id` AS v0
    FROM public.orders AS t
    LEFT SEMI JOIN (
      SELECT any_value(`t`.`order_id`) AS v0
      FROM images_of_order_items AS t
      GROUP BY `t`.`order_id`, `t`.`line`, to_json(struct(`t`.`qty`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
      HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
    ) AS c ON `t`.`id` = c.v0
    WHERE `t`.`status` = 'paid'
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 20 AS place, NULL AS side FROM (
    -- pieces: public.orders
    SELECT any_value(`t`.`customer_id`) AS v0
    FROM images_of_orders AS t
    WHERE (`t`.`status` = 'paid')
    GROUP BY `t`.`id`, to_json(struct(`t`.`customer_id`, `t`.`status`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 21 AS place, NULL AS side FROM (
    -- carriers: logistics.parcels
    SELECT /*+ BROADCAST(c) */ `t`.`customer_id` AS v0
    FROM public.orders AS t
    LEFT SEMI JOIN (
      SELECT /*+ BROADCAST(c) */ `t`.`order_id` AS v0
      FROM public.order_items AS t
      LEFT SEMI JOIN (
        SELECT any_value(`t`.`order_id`) AS v0, any_value(`t`.`line`) AS v1
        FROM images_of_parcels AS t
        GROUP BY `t`.`id`, to_json(struct(`t`.`carrier`, `t`.`line`, `t`.`order_id`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
        HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
      ) AS c ON `t`.`order_id` = c.v0 AND `t`.`line` = c.v1
    ) AS c ON `t`.`id` = c.v0
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 22 AS place, NULL AS side FROM (
    -- carriers: public.order_items
    SELECT /*+ BROADCAST(c) */ `t`.`customer_id` AS v0
    FROM public.orders AS t
    LEFT SEMI JOIN (
      SELECT any_value(`t`.`order_id`) AS v0
      FROM images_of_order_items AS t
      GROUP BY `t`.`order_id`, `t`.`line`
      HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
    ) AS c ON `t`.`id` = c.v0
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 23 AS place, NULL AS side FROM (
    -- carriers: public.orders
    SELECT any_value(`t`.`customer_id`) AS v0
    FROM images_of_orders AS t
    GROUP BY `t`.`id`, to_json(struct(`t`.`customer_id`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 24 AS place, NULL AS side FROM (
    -- bought: public.products
    SELECT /*+ BROADCAST(c) */ `t`.`customer_id` AS v0
    FROM public.orders AS t
    LEFT SEMI JOIN (
      SELECT /*+ BROADCAST(c) */ `t`.`order_id` AS v0
      FROM public.order_items AS t
      LEFT SEMI JOIN (
        SELECT any_value(`t`.`id`) AS v0
        FROM images_of_products AS t
        GROUP BY `t`.`id`, to_json(struct(`t`.`name`, `t`.`price`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
        HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
      ) AS c ON `t`.`product_id` = c.v0
    ) AS c ON `t`.`id` = c.v0
    WHERE `t`.`status` = 'paid'
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 25 AS place, NULL AS side FROM (
    -- bought: public.order_items
    SELECT /*+ BROADCAST(c) */ `t`.`customer_id` AS v0
    FROM public.orders AS t
    LEFT SEMI JOIN (
      SELECT any_value(`t`.`order_id`) AS v0
      FROM images_of_order_items AS t
      GROUP BY `t`.`order_id`, `t`.`line`, to_json(struct(`t`.`product_id`, `t`.`qty`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
      HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
    ) AS c ON `t`.`id` = c.v0
    WHERE `t`.`status` = 'paid'
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 26 AS place, NULL AS side FROM (
    -- bought: public.orders
    SELECT any_value(`t`.`customer_id`) AS v0
    FROM images_of_orders AS t
    WHERE (`t`.`status` = 'paid')
    GROUP BY `t`.`id`, to_json(struct(`t`.`customer_id`, `t`.`placed_at`, `t`.`status`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 27 AS place, NULL AS side FROM (
    -- heaviest: logistics.parcels
    SELECT /*+ BROADCAST(c) */ `t`.`customer_id` AS v0
    FROM public.orders AS t
    LEFT SEMI JOIN (
      SELECT /*+ BROADCAST(c) */ `t`.`order_id` AS v0
      FROM public.order_items AS t
      LEFT SEMI JOIN (
        SELECT any_value(`t`.`order_id`) AS v0, any_value(`t`.`line`) AS v1
        FROM images_of_parcels AS t
        GROUP BY `t`.`id`, to_json(struct(`t`.`line`, `t`.`order_id`, `t`.`weight`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
        HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
      ) AS c ON `t`.`order_id` = c.v0 AND `t`.`line` = c.v1
    ) AS c ON `t`.`id` = c.v0
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 28 AS place, NULL AS side FROM (
    -- heaviest: public.order_items
    SELECT /*+ BROADCAST(c) */ `t`.`customer_id` AS v0
    FROM public.orders AS t
    LEFT SEMI JOIN (
      SELECT any_value(`t`.`order_id`) AS v0
      FROM images_of_order_items AS t
      GROUP BY `t`.`order_id`, `t`.`line`
      HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
    ) AS c ON `t`.`id` = c.v0
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 29 AS place, NULL AS side FROM (
    -- heaviest: public.orders
    SELECT any_value(`t`.`customer_id`) AS v0
    FROM images_of_orders AS t
    GROUP BY `t`.`id`, to_json(struct(`t`.`customer_id`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
)
WHERE k0 IS NOT NULL
GROUP BY k0
