WITH
-- people: rows of public.customers to walk up from
walked0 AS (
  SELECT DISTINCT * FROM (
    SELECT any_value(`t`.`country_id`) AS v0, any_value(`t`.`referred_by`) AS v1
    FROM images_of_customers AS t
    GROUP BY `t`.`id`, to_json(struct(`t`.`country_id`, `t`.`referred_by`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
),
-- people: rows of public.customers to walk up from
walked1 AS (
  SELECT DISTINCT * FROM (
    SELECT /*+ BROADCAST(c) */ `t`.`country_id` AS v0, `t`.`referred_by` AS v1
    FROM public.customers AS t
    LEFT SEMI JOIN (
      SELECT /*+ BROADCAST(c) */ `t`.`customer_id` AS v0
      FROM public.customer_tags AS t
      LEFT SEMI JOIN (
        SELECT any_value(`t`.`id`) AS v0
        FROM images_of_tags AS t
        GROUP BY `t`.`id`, to_json(struct(`t`.`name`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
        HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
      ) AS c ON `t`.`tag_id` = c.v0
    ) AS c ON `t`.`id` = c.v0
  )
),
-- people: rows of public.customers to walk up from
walked2 AS (
  SELECT DISTINCT * FROM (
    SELECT /*+ BROADCAST(c) */ `t`.`country_id` AS v0, `t`.`referred_by` AS v1
    FROM public.customers AS t
    LEFT SEMI JOIN (
      SELECT any_value(`t`.`customer_id`) AS v0
      FROM images_of_customer_tags AS t
      GROUP BY `t`.`customer_id`, `t`.`tag_id`
      HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
    ) AS c ON `t`.`id` = c.v0
  )
),
-- neighbours: rows of public.addresses to walk up from
walked3 AS (
  SELECT DISTINCT * FROM (
    SELECT any_value(`t`.`country_id`) AS v0
    FROM images_of_addresses AS t
    GROUP BY `t`.`id`, to_json(struct(`t`.`city`, `t`.`country_id`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
),
-- neighbours: rows of public.addresses to walk up from
walked4 AS (
  SELECT DISTINCT * FROM (
    SELECT /*+ BROADCAST(c) */ `t`.`country_id` AS v0
    FROM public.addresses AS t
    LEFT SEMI JOIN (
      SELECT any_value(`t`.`billing_id`) AS v0
      FROM images_of_customers AS t
      GROUP BY `t`.`id`, to_json(struct(`t`.`billing_id`, `t`.`referred_by`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
      HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
    ) AS c ON `t`.`id` = c.v0
  )
),
-- neighbours.someone.referrer: rows of public.customers to walk up from
walked5 AS (
  SELECT DISTINCT * FROM (
    SELECT any_value(`t`.`id`) AS v0
    FROM images_of_customers AS t
    GROUP BY `t`.`id`, to_json(struct(`t`.`referred_by`), map('timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", 'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", 'ignoreNullFields', 'false'))
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
),
-- neighbours: rows of public.addresses to walk up from
walked6 AS (
  SELECT DISTINCT * FROM (
    SELECT /*+ BROADCAST(c) */ `t`.`country_id` AS v0
    FROM public.addresses AS t
    LEFT SEMI JOIN (
      SELECT /*+ BROADCAST(c) */ `t`.`billing_id` AS v0
      FROM public.customers AS t
      LEFT SEMI JOIN (
        SELECT DISTINCT v0 AS v0 FROM (
          SELECT * FROM walked5
          UNION ALL
          SELECT /*+ BROADCAST(c) */ `t`.`id` AS v0
          FROM public.customers AS t
          LEFT SEMI JOIN (
            SELECT v0 AS v0 FROM (
              SELECT * FROM walked5
            )
          ) AS c ON `t`.`referred_by` = c.v0
        )
      ) AS c ON `t`.`referred_by` = c.v0
    ) AS c ON `t`.`id` = c.v0
  )
)
SELECT k0, collect_set(place) AS places, coalesce(max(side) = 'new', false) AS came FROM (
  SELECT try_cast(v0 AS SMALLINT) AS k0, 0 AS place, side FROM (
    -- public.countries
    SELECT any_value(`t`.`id`) AS v0, min(t._deltasmelt_side) AS side
    FROM images_of_countries AS t
    GROUP BY `t`.`id`
    HAVING min(t._deltasmelt_side) = max(t._deltasmelt_side)
  )
  UNION ALL
  SELECT try_cast(v0 AS SMALLINT) AS k0, 1 AS place, NULL AS side FROM (
    -- people: public.customers
    SELECT DISTINCT v0 AS v0 FROM (
      SELECT * FROM walked0
      UNION ALL
      SELECT /*+ BROADCAST(c) */ `t`.`country_id` AS v0, `t`.`referred_by` AS v1
      FROM public.customers AS t
      LEFT SEMI JOIN (
        SELECT v0 AS v0, v1 AS v1 FROM (
          SELECT * FROM walked0
          UNION ALL
          SELECT /*+ BROADCAST(c) */ `t`.`country_id` AS v0, `t`.`referred_by` AS v1
          FROM public.customers AS t
          LEFT SEMI JOIN (
            SELECT v0 AS v0, v1 AS v1 FROM (
              SELECT * FROM walked0
            )
          ) AS c ON `t`.`country_id` = c.v0 AND `t`.`id` = c.v1
        )
      ) AS c ON `t`.`country_id` = c.v0 AND `t`.`id` = c.v1
    )
  )
  UNION ALL
  SELECT try_cast(v0 AS SMALLINT) AS k0, 2 AS place, NULL AS side FROM (
    -- people.tags: public.tags
    SELECT DISTINCT v0 AS v0 FROM (
      SELECT * FROM walked1
      UNION ALL
      SELECT /*+ BROADCAST(c) */ `t`.`country_id` AS v0, `t`.`referred_by` AS v1
      FROM public.customers AS t
      LEFT SEMI JOIN (
        SELECT v0 AS v0, v1 AS v1 FROM (
          SELECT * FROM walked1
          UNION ALL
          SELECT /*+ BROADCAST(c) */ `t`.`country_id` AS v0, `t`.`referred_by` AS v1
          FROM public.customers AS t
          LEFT SEMI JOIN (
            SELECT v0 AS v0, v1 AS v1 FROM (
              SELECT * FROM walked1
            )
          ) AS c ON `t`.`country_id` = c.v0 AND `t`.`id` = c.v1
        )
      ) AS c ON `t`.`country_id` = c.v0 AND `t`.`id` = c.v1
    )
  )
  UNION ALL
  SELECT try_cast(v0 AS SMALLINT) AS k0, 3 AS place, NULL AS side FROM (
    -- people.tags: public.customer_tags
    SELECT DISTINCT v0 AS v0 FROM (
      SELECT * FROM walked2
      UNION ALL
      SELECT /*+ BROADCAST(c) */ `t`.`country_id` AS v0, `t`.`referred_by` AS v1
      FROM public.customers AS t
      LEFT SEMI JOIN (
        SELECT v0 AS v0, v1 AS v1 FROM (
          SELECT * FROM walked2
          UNION ALL
          SELECT /*+ BROADCAST(c) */ `t`.`country_id` AS v0, `t`.`referred_by` AS v1
          FROM public.customers AS t
          LEFT SEMI JOIN (
            SELECT v0 AS v0, v1 AS v1 FROM (
              SELECT * FROM walked2
            )
          ) AS c ON `t`.`country_id` = c.v0 AND `t`.`id` = c.v1
        )
      ) AS c ON `t`.`country_id` = c.v0 AND `t`.`id` = c.v1
    )
  )
  UNION ALL
  SELECT try_cast(v0 AS SMALLINT) AS k0, 4 AS place, NULL AS side FROM (
    -- neighbours: public.addresses
    SELECT DISTINCT v0 AS v0 FROM (
      SELECT * FROM walked3
      UNION ALL
      SELECT /*+ BROADCAST(c) */ `t`.`country_id` AS v0
      FROM public.addresses AS t
      LEFT SEMI JOIN (
        SELECT v0 AS v0 FROM (
          SELECT * FROM walked3
        )
      ) AS c ON `t`.`country_id` = c.v0
    )
  )
  UNION ALL
  SELECT try_cast(v0 AS SMALLINT) AS k0, 5 AS place, NULL AS side FROM (
    -- neighbours.someone: public.customers
    SELECT DISTINCT v0 AS v0 FROM (
      SELECT * FROM walked4
      UNION ALL
      SELECT /*+ BROADCAST(c) */ `t`.`country_id` AS v0
      FROM public.addresses AS t
      LEFT SEMI JOIN (
        SELECT v0 AS v0 FROM (
          SELECT * FROM walked4
        )
      ) AS c ON `t`.`country_id` = c.v0
    )
  )
  UNION ALL
  SELECT try_cast(v0 AS SMALLINT) AS k0, 6 AS place, NULL AS side FROM (
    -- neighbours.someone.referrer: public.customers
    SELECT DISTINCT v0 AS v0 FROM (
      SELECT * FROM walked6
      UNION ALL
      SELECT /*+ BROADCAST(c) */ `t`.`country_id` AS v0
      FROM public.addresses AS t
      LEFT SEMI JOIN (
        SELECT v0 AS v0 FROM (
          SELECT * FROM walked6
        )
      ) AS c ON `t`.`country_id` = c.v0
    )
  )
)
WHERE k0 IS NOT NULL
GROUP BY k0
