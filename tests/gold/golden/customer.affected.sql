SELECT k0, collect_set(place) AS places, coalesce(max(side) = 'new', false) AS came FROM (
  SELECT try_cast(v0 AS BIGINT) AS k0, 0 AS place, side FROM (
    -- public.customers
    SELECT any_value(`t`.`id`) AS v0, min(t._deltasmelt_side) AS side
    FROM images_of_customers AS t
    WHERE ((`t`.`deleted_at` is null AND NOT `t`.`_deltasmelt_lost_deleted_at`))
    GROUP BY `t`.`id`, to_json(struct(`t`.`_deltasmelt_lost_deleted_at`, `t`.`balance`, `t`.`billing_id`, `t`.`country_id`, `t`.`created_at`, `t`.`deleted_at`, `t`.`email`, `t`.`referred_by`, `t`.`shipping_id`, `t`.`tier`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 1 AS place, NULL AS side FROM (
    -- account.home: public.addresses
    SELECT /*+ BROADCAST(c) */ `t`.`id` AS v0
    FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
    LEFT SEMI JOIN (
      SELECT any_value(`t`.`id`) AS v0
      FROM images_of_addresses AS t
      GROUP BY `t`.`id`, to_json(struct(`t`.`city`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
      HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
    ) AS c ON `t`.`billing_id` = c.v0
    WHERE (`t`.`deleted_at` is null AND NOT `t`.`_deltasmelt_lost_deleted_at`)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 2 AS place, NULL AS side FROM (
    -- country: public.countries
    SELECT /*+ BROADCAST(c) */ `t`.`id` AS v0
    FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
    LEFT SEMI JOIN (
      SELECT any_value(`t`.`id`) AS v0
      FROM images_of_countries AS t
      GROUP BY `t`.`id`, to_json(struct(`t`.`code`, `t`.`name`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
      HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
    ) AS c ON `t`.`country_id` = c.v0
    WHERE (`t`.`deleted_at` is null AND NOT `t`.`_deltasmelt_lost_deleted_at`)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 3 AS place, NULL AS side FROM (
    -- billing: public.addresses
    SELECT /*+ BROADCAST(c) */ `t`.`id` AS v0
    FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
    LEFT SEMI JOIN (
      SELECT any_value(`t`.`id`) AS v0
      FROM images_of_addresses AS t
      GROUP BY `t`.`id`, to_json(struct(`t`.`city`, `t`.`country_id`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
      HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
    ) AS c ON `t`.`billing_id` = c.v0
    WHERE (`t`.`deleted_at` is null AND NOT `t`.`_deltasmelt_lost_deleted_at`)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 4 AS place, NULL AS side FROM (
    -- billing.country: public.countries
    SELECT /*+ BROADCAST(c) */ `t`.`id` AS v0
    FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
    LEFT SEMI JOIN (
      SELECT /*+ BROADCAST(c) */ `t`.`id` AS v0
      FROM public.addresses AS t
      LEFT SEMI JOIN (
        SELECT any_value(`t`.`id`) AS v0
        FROM images_of_countries AS t
        GROUP BY `t`.`id`, to_json(struct(`t`.`code`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
        HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
      ) AS c ON `t`.`country_id` = c.v0
    ) AS c ON `t`.`billing_id` = c.v0
    WHERE (`t`.`deleted_at` is null AND NOT `t`.`_deltasmelt_lost_deleted_at`)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 5 AS place, NULL AS side FROM (
    -- shipping: public.addresses
    SELECT /*+ BROADCAST(c) */ `t`.`id` AS v0
    FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
    LEFT SEMI JOIN (
      SELECT any_value(`t`.`id`) AS v0
      FROM images_of_addresses AS t
      GROUP BY `t`.`id`, to_json(struct(`t`.`city`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
      HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
    ) AS c ON `t`.`shipping_id` = c.v0
    WHERE (`t`.`deleted_at` is null AND NOT `t`.`_deltasmelt_lost_deleted_at`)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 6 AS place, NULL AS side FROM (
    -- referrer: public.customers
    SELECT /*+ BROADCAST(c) */ `t`.`id` AS v0
    FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
    LEFT SEMI JOIN (
      SELECT any_value(`t`.`id`) AS v0
      FROM images_of_customers AS t
      GROUP BY `t`.`id`, to_json(struct(`t`.`email`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
      HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
    ) AS c ON `t`.`referred_by` = c.v0
    WHERE (`t`.`deleted_at` is null AND NOT `t`.`_deltasmelt_lost_deleted_at`)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 7 AS place, NULL AS side FROM (
    -- referred: public.customers
    SELECT any_value(`t`.`referred_by`) AS v0
    FROM images_of_customers AS t
    WHERE ((`t`.`deleted_at` is null AND NOT `t`.`_deltasmelt_lost_deleted_at`))
    GROUP BY `t`.`id`, to_json(struct(`t`.`_deltasmelt_lost_deleted_at`, `t`.`deleted_at`, `t`.`referred_by`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 8 AS place, NULL AS side FROM (
    -- orders: public.orders
    SELECT any_value(`t`.`customer_id`) AS v0
    FROM images_of_orders AS t
    WHERE (`t`.`status` <> 'cancelled')
    GROUP BY `t`.`id`, to_json(struct(`t`.`customer_id`, `t`.`placed_at`, `t`.`status`, `t`.`total`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 9 AS place, NULL AS side FROM (
    -- orders.items: public.order_items
    SELECT /*+ BROADCAST(c) */ `t`.`customer_id` AS v0
    FROM public.orders AS t
    LEFT SEMI JOIN (
      SELECT any_value(`t`.`order_id`) AS v0
      FROM images_of_order_items AS t
      GROUP BY `t`.`order_id`, `t`.`line`, to_json(struct(`t`.`product_id`, `t`.`qty`, `t`.`sku`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
      HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
    ) AS c ON `t`.`id` = c.v0
    WHERE `t`.`status` <> 'cancelled'
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 10 AS place, NULL AS side FROM (
    -- orders.items.product: public.products
    SELECT /*+ BROADCAST(c) */ `t`.`customer_id` AS v0
    FROM public.orders AS t
    LEFT SEMI JOIN (
      SELECT /*+ BROADCAST(c) */ `t`.`order_id` AS v0
      FROM public.order_items AS t
      LEFT SEMI JOIN (
        SELECT any_value(`t`.`id`) AS v0
        FROM images_of_products AS t
        GROUP BY `t`.`id`, to_json(struct(`t`.`launched`, `t`.`name`, `t`.`price`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
        HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
      ) AS c ON `t`.`product_id` = c.v0
    ) AS c ON `t`.`id` = c.v0
    WHERE `t`.`status` <> 'cancelled'
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 11 AS place, NULL AS side FROM (
    -- orders.items.parcels: logistics.parcels
    SELECT /*+ BROADCAST(c) */ `t`.`customer_id` AS v0
    FROM public.orders AS t
    LEFT SEMI JOIN (
      SELECT /*+ BROADCAST(c) */ `t`.`order_id` AS v0
      FROM public.order_items AS t
      LEFT SEMI JOIN (
        SELECT any_value(`t`.`order_id`) AS v0, any_value(`t`.`line`) AS v1
        FROM images_of_parcels AS t
        GROUP BY `t`.`id`, to_json(struct(`t`.`carrier`, `t`.`line`, `t`.`order_id`, `t`.`weight`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
        HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
      ) AS c ON `t`.`order_id` = c.v0 AND `t`.`line` = c.v1
    ) AS c ON `t`.`id` = c.v0
    WHERE `t`.`status` <> 'cancelled'
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 12 AS place, NULL AS side FROM (
    -- orders.pieces: public.order_items
    SELECT /*+ BROADCAST(c) */ `t`.`customer_id` AS v0
    FROM public.orders AS t
    LEFT SEMI JOIN (
      SELECT any_value(`t`.`order_id`) AS v0
      FROM images_of_order_items AS t
      GROUP BY `t`.`order_id`, `t`.`line`, to_json(struct(`t`.`qty`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
      HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
    ) AS c ON `t`.`id` = c.v0
    WHERE `t`.`status` <> 'cancelled'
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 13 AS place, NULL AS side FROM (
    -- first_order: public.orders
    SELECT any_value(`t`.`customer_id`) AS v0
    FROM images_of_orders AS t
    GROUP BY `t`.`id`, to_json(struct(`t`.`customer_id`, `t`.`placed_at`, `t`.`status`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 14 AS place, NULL AS side FROM (
    -- tags: public.tags
    SELECT /*+ BROADCAST(c) */ `t`.`customer_id` AS v0
    FROM public.customer_tags AS t
    LEFT SEMI JOIN (
      SELECT any_value(`t`.`id`) AS v0
      FROM images_of_tags AS t
      WHERE (`t`.`name` <> 'old')
      GROUP BY `t`.`id`, to_json(struct(`t`.`name`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
      HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
    ) AS c ON `t`.`tag_id` = c.v0
    WHERE `t`.`active`
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 15 AS place, NULL AS side FROM (
    -- tags: public.customer_tags
    SELECT any_value(`t`.`customer_id`) AS v0
    FROM images_of_customer_tags AS t
    WHERE (`t`.`active`)
    GROUP BY `t`.`customer_id`, `t`.`tag_id`, to_json(struct(`t`.`active`, `t`.`added_at`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 16 AS place, NULL AS side FROM (
    -- tag_names: public.tags
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
  SELECT try_cast(v0 AS BIGINT) AS k0, 17 AS place, NULL AS side FROM (
    -- tag_names: public.customer_tags
    SELECT any_value(`t`.`customer_id`) AS v0
    FROM images_of_customer_tags AS t
    GROUP BY `t`.`customer_id`, `t`.`tag_id`
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 18 AS place, NULL AS side FROM (
    -- order_count: public.orders
    SELECT any_value(`t`.`customer_id`) AS v0
    FROM images_of_orders AS t
    GROUP BY `t`.`id`, to_json(struct(`t`.`customer_id`, `t`.`placed_at`, `t`.`status`, `t`.`total`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 19 AS place, NULL AS side FROM (
    -- placements: public.orders
    SELECT any_value(`t`.`customer_id`) AS v0
    FROM images_of_orders AS t
    GROUP BY `t`.`id`, to_json(struct(`t`.`customer_id`, `t`.`placed_at`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 20 AS place, NULL AS side FROM (
    -- tag_count: public.tags
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
  SELECT try_cast(v0 AS BIGINT) AS k0, 21 AS place, NULL AS side FROM (
    -- tag_count: public.customer_tags
    SELECT any_value(`t`.`customer_id`) AS v0
    FROM images_of_customer_tags AS t
    GROUP BY `t`.`customer_id`, `t`.`tag_id`
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
)
WHERE k0 IS NOT NULL
GROUP BY k0
