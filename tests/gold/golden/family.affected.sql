WITH
-- referrer: rows of public.customers to walk up from
walked0 AS (
  SELECT DISTINCT * FROM (
    SELECT any_value(`t`.`id`) AS v0
    FROM images_of_customers AS t
    GROUP BY `t`.`id`, to_json(struct(`t`.`country_id`, `t`.`email`, `t`.`referred_by`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
),
-- referrer: rows of public.customers to walk up from
walked1 AS (
  SELECT DISTINCT * FROM (
    SELECT /*+ BROADCAST(c) */ `t`.`id` AS v0
    FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
    LEFT SEMI JOIN (
      SELECT any_value(`t`.`id`) AS v0
      FROM images_of_countries AS t
      GROUP BY `t`.`id`, to_json(struct(`t`.`code`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
      HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
    ) AS c ON `t`.`country_id` = c.v0
  )
),
-- referred: rows of public.customers to walk up from
walked2 AS (
  SELECT DISTINCT * FROM (
    SELECT any_value(`t`.`referred_by`) AS v0
    FROM images_of_customers AS t
    WHERE ((`t`.`deleted_at` is null AND NOT `t`.`_deltasmelt_lost_deleted_at`))
    GROUP BY `t`.`id`, to_json(struct(`t`.`_deltasmelt_lost_deleted_at`, `t`.`balance`, `t`.`created_at`, `t`.`deleted_at`, `t`.`referred_by`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
),
-- referred: rows of public.customers to walk up from
walked3 AS (
  SELECT DISTINCT * FROM (
    SELECT /*+ BROADCAST(c) */ `t`.`referred_by` AS v0
    FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
    LEFT SEMI JOIN (
      SELECT any_value(`t`.`customer_id`) AS v0
      FROM images_of_orders AS t
      GROUP BY `t`.`id`, to_json(struct(`t`.`customer_id`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
      HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
    ) AS c ON `t`.`id` = c.v0
    WHERE (`t`.`deleted_at` is null AND NOT `t`.`_deltasmelt_lost_deleted_at`)
  )
),
-- heir: rows of public.customers to walk up from
walked4 AS (
  SELECT DISTINCT * FROM (
    SELECT any_value(`t`.`referred_by`) AS v0
    FROM images_of_customers AS t
    GROUP BY `t`.`id`, to_json(struct(`t`.`email`, `t`.`referred_by`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
),
-- heir: rows of public.customers to walk up from
walked5 AS (
  SELECT DISTINCT * FROM (
    SELECT /*+ BROADCAST(c) */ `t`.`referred_by` AS v0
    FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
    LEFT SEMI JOIN (
      SELECT any_value(`t`.`customer_id`) AS v0
      FROM images_of_orders AS t
      GROUP BY `t`.`id`, to_json(struct(`t`.`customer_id`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
      HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
    ) AS c ON `t`.`id` = c.v0
  )
),
-- by_tier: rows of public.customers to walk up from
walked6 AS (
  SELECT DISTINCT * FROM (
    SELECT any_value(`t`.`referred_by`) AS v0
    FROM images_of_customers AS t
    GROUP BY `t`.`id`, to_json(struct(`t`.`referred_by`, `t`.`tier`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
)
SELECT k0, collect_set(place) AS places, coalesce(max(side) = 'new', false) AS came FROM (
  SELECT try_cast(v0 AS BIGINT) AS k0, 0 AS place, side FROM (
    -- public.customers
    SELECT any_value(`t`.`id`) AS v0, min(t._deltasmelt_side) AS side
    FROM images_of_customers AS t
    GROUP BY `t`.`id`, to_json(struct(`t`.`referred_by`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 1 AS place, NULL AS side FROM (
    -- referrer: public.customers
    SELECT /*+ BROADCAST(c) */ `t`.`id` AS v0
    FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
    LEFT SEMI JOIN (
      SELECT DISTINCT v0 AS v0 FROM (
        SELECT * FROM walked0
        UNION ALL
        SELECT /*+ BROADCAST(c) */ `t`.`id` AS v0
        FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
        LEFT SEMI JOIN (
          SELECT v0 AS v0 FROM (
            SELECT * FROM walked0
            UNION ALL
            SELECT /*+ BROADCAST(c) */ `t`.`id` AS v0
            FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
            LEFT SEMI JOIN (
              SELECT v0 AS v0 FROM (
                SELECT * FROM walked0
              )
            ) AS c ON `t`.`referred_by` = c.v0
          )
        ) AS c ON `t`.`referred_by` = c.v0
      )
    ) AS c ON `t`.`referred_by` = c.v0
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 2 AS place, NULL AS side FROM (
    -- referrer.country: public.countries
    SELECT /*+ BROADCAST(c) */ `t`.`id` AS v0
    FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
    LEFT SEMI JOIN (
      SELECT DISTINCT v0 AS v0 FROM (
        SELECT * FROM walked1
        UNION ALL
        SELECT /*+ BROADCAST(c) */ `t`.`id` AS v0
        FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
        LEFT SEMI JOIN (
          SELECT v0 AS v0 FROM (
            SELECT * FROM walked1
            UNION ALL
            SELECT /*+ BROADCAST(c) */ `t`.`id` AS v0
            FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
            LEFT SEMI JOIN (
              SELECT v0 AS v0 FROM (
                SELECT * FROM walked1
              )
            ) AS c ON `t`.`referred_by` = c.v0
          )
        ) AS c ON `t`.`referred_by` = c.v0
      )
    ) AS c ON `t`.`referred_by` = c.v0
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 3 AS place, NULL AS side FROM (
    -- referred: public.customers
    SELECT DISTINCT v0 AS v0 FROM (
      SELECT * FROM walked2
      UNION ALL
      SELECT /*+ BROADCAST(c) */ `t`.`referred_by` AS v0
      FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
      LEFT SEMI JOIN (
        SELECT v0 AS v0 FROM (
          SELECT * FROM walked2
          UNION ALL
          SELECT /*+ BROADCAST(c) */ `t`.`referred_by` AS v0
          FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
          LEFT SEMI JOIN (
            SELECT v0 AS v0 FROM (
              SELECT * FROM walked2
              UNION ALL
              SELECT /*+ BROADCAST(c) */ `t`.`referred_by` AS v0
              FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
              LEFT SEMI JOIN (
                SELECT v0 AS v0 FROM (
                  SELECT * FROM walked2
                )
              ) AS c ON `t`.`id` = c.v0
              WHERE (`t`.`deleted_at` is null AND NOT `t`.`_deltasmelt_lost_deleted_at`)
            )
          ) AS c ON `t`.`id` = c.v0
          WHERE (`t`.`deleted_at` is null AND NOT `t`.`_deltasmelt_lost_deleted_at`)
        )
      ) AS c ON `t`.`id` = c.v0
      WHERE (`t`.`deleted_at` is null AND NOT `t`.`_deltasmelt_lost_deleted_at`)
    )
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 4 AS place, NULL AS side FROM (
    -- referred.order_count: public.orders
    SELECT DISTINCT v0 AS v0 FROM (
      SELECT * FROM walked3
      UNION ALL
      SELECT /*+ BROADCAST(c) */ `t`.`referred_by` AS v0
      FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
      LEFT SEMI JOIN (
        SELECT v0 AS v0 FROM (
          SELECT * FROM walked3
          UNION ALL
          SELECT /*+ BROADCAST(c) */ `t`.`referred_by` AS v0
          FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
          LEFT SEMI JOIN (
            SELECT v0 AS v0 FROM (
              SELECT * FROM walked3
              UNION ALL
              SELECT /*+ BROADCAST(c) */ `t`.`referred_by` AS v0
              FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
              LEFT SEMI JOIN (
                SELECT v0 AS v0 FROM (
                  SELECT * FROM walked3
                )
              ) AS c ON `t`.`id` = c.v0
              WHERE (`t`.`deleted_at` is null AND NOT `t`.`_deltasmelt_lost_deleted_at`)
            )
          ) AS c ON `t`.`id` = c.v0
          WHERE (`t`.`deleted_at` is null AND NOT `t`.`_deltasmelt_lost_deleted_at`)
        )
      ) AS c ON `t`.`id` = c.v0
      WHERE (`t`.`deleted_at` is null AND NOT `t`.`_deltasmelt_lost_deleted_at`)
    )
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 5 AS place, NULL AS side FROM (
    -- heir: public.customers
    SELECT DISTINCT v0 AS v0 FROM (
      SELECT * FROM walked4
      UNION ALL
      SELECT /*+ BROADCAST(c) */ `t`.`referred_by` AS v0
      FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
      LEFT SEMI JOIN (
        SELECT v0 AS v0 FROM (
          SELECT * FROM walked4
        )
      ) AS c ON `t`.`id` = c.v0
    )
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 6 AS place, NULL AS side FROM (
    -- heir.first_order: public.orders
    SELECT DISTINCT v0 AS v0 FROM (
      SELECT * FROM walked5
      UNION ALL
      SELECT /*+ BROADCAST(c) */ `t`.`referred_by` AS v0
      FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
      LEFT SEMI JOIN (
        SELECT v0 AS v0 FROM (
          SELECT * FROM walked5
        )
      ) AS c ON `t`.`id` = c.v0
    )
  )
  UNION ALL
  SELECT try_cast(v0 AS BIGINT) AS k0, 7 AS place, NULL AS side FROM (
    -- by_tier: public.customers
    SELECT DISTINCT v0 AS v0 FROM (
      SELECT * FROM walked6
      UNION ALL
      SELECT /*+ BROADCAST(c) */ `t`.`referred_by` AS v0
      FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
      LEFT SEMI JOIN (
        SELECT v0 AS v0 FROM (
          SELECT * FROM walked6
        )
      ) AS c ON `t`.`id` = c.v0
    )
  )
)
WHERE k0 IS NOT NULL
GROUP BY k0
