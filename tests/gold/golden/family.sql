WITH
-- referrer.country: public.countries
n2_country AS (
  SELECT
    `t`.`id` AS k0,
    named_struct('code', `t`.`code`) AS item
  FROM public.countries AS t
),
-- referrer: its rows
n1_referrer_rows AS (
  SELECT
    `t`.`id` AS c0,
    `t`.`referred_by` AS c1,
    named_struct('id', `t`.`id`, 'mail', lower(trim(`t`.`email`)), 'country', n2_country.item) AS item
  FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
  LEFT JOIN n2_country ON n2_country.k0 = `t`.`country_id`
),
-- referrer: level 1
n1_referrer_1 AS (
  SELECT
    `p`.`id` AS k0,
    struct(s.*) AS r1,
    named_struct('k0', `p`.`id`) = named_struct('k0', s.c0) AS a1,
    array(named_struct('k0', `p`.`id`), named_struct('k0', s.c0)) AS p1
  FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS p
  JOIN n1_referrer_rows AS s ON s.c0 = `p`.`referred_by`
),
-- referrer: down to level 2
n1_referrer_2 AS (
  SELECT
    c.*,
    CASE WHEN s.c0 IS NOT NULL THEN struct(s.*) END AS r2,
    s.c0 IS NOT NULL AND array_contains(c.p1, named_struct('k0', s.c0)) AS a2,
    CASE WHEN s.c0 IS NOT NULL THEN concat(c.p1, array(named_struct('k0', s.c0))) ELSE c.p1 END AS p2
  FROM n1_referrer_1 AS c
  LEFT JOIN n1_referrer_rows AS s ON s.c0 = c.r1.c1 AND NOT c.a1
),
-- referrer: down to level 3
n1_referrer_3 AS (
  SELECT
    c.*,
    CASE WHEN s.c0 IS NOT NULL THEN struct(s.*) END AS r3,
    s.c0 IS NOT NULL AND array_contains(c.p2, named_struct('k0', s.c0)) AS a3,
    CASE WHEN s.c0 IS NOT NULL THEN concat(c.p2, array(named_struct('k0', s.c0))) ELSE c.p2 END AS p3
  FROM n1_referrer_2 AS c
  LEFT JOIN n1_referrer_rows AS s ON s.c0 = c.r2.c1 AND NOT c.a2
),
-- referrer: up from level 3
n1_referrer_up3 AS (
  SELECT
    p2,
    any_value(k0) AS k0,
    any_value(r1) AS r1,
    any_value(a1) AS a1,
    any_value(p1) AS p1,
    any_value(r2) AS r2,
    any_value(a2) AS a2,
    any_value(item) FILTER (WHERE there AND n = 1) AS item,
    bool_or(again) AS cut
  FROM (
    SELECT
      x.p2,
      x.k0,
      x.r1,
      x.a1,
      x.p1,
      x.r2,
      x.a2,
      x.r3 IS NOT NULL AND NOT x.a3 AS there,
      x.a3 AS again,
      row_number() OVER (PARTITION BY x.p2 ORDER BY x.r3 IS NOT NULL AND NOT x.a3 DESC, x.r3.c0 ASC NULLS LAST) AS n,
      named_struct('id', x.r3.item.`id`, 'mail', x.r3.item.`mail`, 'country', x.r3.item.`country`) AS item
    FROM n1_referrer_3 AS x
  ) AS s
  GROUP BY p2
),
-- referrer: up from level 2
n1_referrer_up2 AS (
  SELECT
    p1,
    any_value(k0) AS k0,
    any_value(r1) AS r1,
    any_value(a1) AS a1,
    any_value(item) FILTER (WHERE there AND n = 1) AS item,
    bool_or(again) OR coalesce(bool_or(cut) FILTER (WHERE there AND n = 1), false) AS cut
  FROM (
    SELECT
      x.p1,
      x.k0,
      x.r1,
      x.a1,
      x.r2 IS NOT NULL AND NOT x.a2 AS there,
      x.a2 AS again,
      row_number() OVER (PARTITION BY x.p1 ORDER BY x.r2 IS NOT NULL AND NOT x.a2 DESC, x.r2.c0 ASC NULLS LAST) AS n,
      named_struct(
        'id', x.r2.item.`id`,
        'mail', x.r2.item.`mail`,
        'country', x.r2.item.`country`,
        'referrer', x.item
      ) AS item,
      x.cut AS cut
    FROM n1_referrer_up3 AS x
  ) AS s
  GROUP BY p1
),
-- referrer: public.customers, 3 levels
n1_referrer AS (
  SELECT
    k0,
    any_value(item) FILTER (WHERE there AND n = 1) AS item,
    bool_or(again) OR coalesce(bool_or(cut) FILTER (WHERE there AND n = 1), false) AS cut
  FROM (
    SELECT
      x.k0,
      x.r1 IS NOT NULL AND NOT x.a1 AS there,
      x.a1 AS again,
      row_number() OVER (PARTITION BY x.k0 ORDER BY x.r1 IS NOT NULL AND NOT x.a1 DESC, x.r1.c0 ASC NULLS LAST) AS n,
      named_struct(
        'id', x.r1.item.`id`,
        'mail', x.r1.item.`mail`,
        'country', x.r1.item.`country`,
        'referrer', x.item
      ) AS item,
      x.cut AS cut
    FROM n1_referrer_up2 AS x
  ) AS s
  GROUP BY k0
),
-- referred.order_count: public.orders
n4_order_count AS (
  SELECT
    `t`.`customer_id` AS k0,
    count(*) AS m0
  FROM public.orders AS t
  WHERE `t`.`customer_id` IS NOT NULL
  GROUP BY `t`.`customer_id`
),
-- referred: its rows
n3_referred_rows AS (
  SELECT
    `t`.`id` AS c0,
    `t`.`referred_by` AS c1,
    `t`.`balance` AS c2,
    named_struct(
      'id', `t`.`id`,
      'order_count', coalesce(n4_order_count.m0, 0L),
      'created_at', `t`.`created_at`
    ) AS item
  FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
  LEFT JOIN n4_order_count ON n4_order_count.k0 = `t`.`id`
  WHERE (`t`.`deleted_at` is null AND NOT `t`.`_deltasmelt_lost_deleted_at`)
),
-- referred: level 1
n3_referred_1 AS (
  SELECT
    `p`.`id` AS k0,
    struct(s.*) AS r1,
    named_struct('k0', `p`.`id`) = named_struct('k0', s.c0) AS a1,
    array(named_struct('k0', `p`.`id`), named_struct('k0', s.c0)) AS p1
  FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS p
  JOIN n3_referred_rows AS s ON s.c1 = `p`.`id`
),
-- referred: down to level 2
n3_referred_2 AS (
  SELECT
    c.*,
    CASE WHEN s.c0 IS NOT NULL THEN struct(s.*) END AS r2,
    s.c0 IS NOT NULL AND array_contains(c.p1, named_struct('k0', s.c0)) AS a2,
    CASE WHEN s.c0 IS NOT NULL THEN concat(c.p1, array(named_struct('k0', s.c0))) ELSE c.p1 END AS p2
  FROM n3_referred_1 AS c
  LEFT JOIN n3_referred_rows AS s ON s.c1 = c.r1.c0 AND NOT c.a1
),
-- referred: down to level 3
n3_referred_3 AS (
  SELECT
    c.*,
    CASE WHEN s.c0 IS NOT NULL THEN struct(s.*) END AS r3,
    s.c0 IS NOT NULL AND array_contains(c.p2, named_struct('k0', s.c0)) AS a3,
    CASE WHEN s.c0 IS NOT NULL THEN concat(c.p2, array(named_struct('k0', s.c0))) ELSE c.p2 END AS p3
  FROM n3_referred_2 AS c
  LEFT JOIN n3_referred_rows AS s ON s.c1 = c.r2.c0 AND NOT c.a2
),
-- referred: down to level 4
n3_referred_4 AS (
  SELECT
    c.*,
    CASE WHEN s.c0 IS NOT NULL THEN struct(s.*) END AS r4,
    s.c0 IS NOT NULL AND array_contains(c.p3, named_struct('k0', s.c0)) AS a4,
    CASE WHEN s.c0 IS NOT NULL THEN concat(c.p3, array(named_struct('k0', s.c0))) ELSE c.p3 END AS p4
  FROM n3_referred_3 AS c
  LEFT JOIN n3_referred_rows AS s ON s.c1 = c.r3.c0 AND NOT c.a3
),
-- referred: up from level 4
n3_referred_up4 AS (
  SELECT
    p3,
    any_value(k0) AS k0,
    any_value(r1) AS r1,
    any_value(a1) AS a1,
    any_value(p1) AS p1,
    any_value(r2) AS r2,
    any_value(a2) AS a2,
    any_value(p2) AS p2,
    any_value(r3) AS r3,
    any_value(a3) AS a3,
    sort_array(collect_list(named_struct('n', n, 'item', item)) FILTER (WHERE there AND n <= 3)).item AS item,
    bool_or(again) AS cut
  FROM (
    SELECT
      x.p3,
      x.k0,
      x.r1,
      x.a1,
      x.p1,
      x.r2,
      x.a2,
      x.p2,
      x.r3,
      x.a3,
      x.r4 IS NOT NULL AND NOT x.a4 AS there,
      x.a4 AS again,
      row_number() OVER (PARTITION BY x.p3 ORDER BY x.r4 IS NOT NULL AND NOT x.a4 DESC, x.r4.c2 DESC NULLS FIRST, x.r4.c0 ASC NULLS LAST) AS n,
      named_struct(
        'id', x.r4.item.`id`,
        'order_count', x.r4.item.`order_count`,
        'created_at', x.r4.item.`created_at`
      ) AS item
    FROM n3_referred_4 AS x
  ) AS s
  GROUP BY p3
),
-- referred: up from level 3
n3_referred_up3 AS (
  SELECT
    p2,
    any_value(k0) AS k0,
    any_value(r1) AS r1,
    any_value(a1) AS a1,
    any_value(p1) AS p1,
    any_value(r2) AS r2,
    any_value(a2) AS a2,
    sort_array(collect_list(named_struct('n', n, 'item', item)) FILTER (WHERE there AND n <= 3)).item AS item,
    bool_or(again) OR coalesce(bool_or(cut) FILTER (WHERE there AND n <= 3), false) AS cut
  FROM (
    SELECT
      x.p2,
      x.k0,
      x.r1,
      x.a1,
      x.p1,
      x.r2,
      x.a2,
      x.r3 IS NOT NULL AND NOT x.a3 AS there,
      x.a3 AS again,
      row_number() OVER (PARTITION BY x.p2 ORDER BY x.r3 IS NOT NULL AND NOT x.a3 DESC, x.r3.c2 DESC NULLS FIRST, x.r3.c0 ASC NULLS LAST) AS n,
      named_struct(
        'id', x.r3.item.`id`,
        'order_count', x.r3.item.`order_count`,
        'created_at', x.r3.item.`created_at`,
        'referred', x.item
      ) AS item,
      x.cut AS cut
    FROM n3_referred_up4 AS x
  ) AS s
  GROUP BY p2
),
-- referred: up from level 2
n3_referred_up2 AS (
  SELECT
    p1,
    any_value(k0) AS k0,
    any_value(r1) AS r1,
    any_value(a1) AS a1,
    sort_array(collect_list(named_struct('n', n, 'item', item)) FILTER (WHERE there AND n <= 3)).item AS item,
    bool_or(again) OR coalesce(bool_or(cut) FILTER (WHERE there AND n <= 3), false) AS cut
  FROM (
    SELECT
      x.p1,
      x.k0,
      x.r1,
      x.a1,
      x.r2 IS NOT NULL AND NOT x.a2 AS there,
      x.a2 AS again,
      row_number() OVER (PARTITION BY x.p1 ORDER BY x.r2 IS NOT NULL AND NOT x.a2 DESC, x.r2.c2 DESC NULLS FIRST, x.r2.c0 ASC NULLS LAST) AS n,
      named_struct(
        'id', x.r2.item.`id`,
        'order_count', x.r2.item.`order_count`,
        'created_at', x.r2.item.`created_at`,
        'referred', x.item
      ) AS item,
      x.cut AS cut
    FROM n3_referred_up3 AS x
  ) AS s
  GROUP BY p1
),
-- referred: public.customers, 4 levels
n3_referred AS (
  SELECT
    k0,
    sort_array(collect_list(named_struct('n', n, 'item', item)) FILTER (WHERE there AND n <= 3)).item AS item,
    bool_or(again) OR coalesce(bool_or(cut) FILTER (WHERE there AND n <= 3), false) AS cut
  FROM (
    SELECT
      x.k0,
      x.r1 IS NOT NULL AND NOT x.a1 AS there,
      x.a1 AS again,
      row_number() OVER (PARTITION BY x.k0 ORDER BY x.r1 IS NOT NULL AND NOT x.a1 DESC, x.r1.c2 DESC NULLS FIRST, x.r1.c0 ASC NULLS LAST) AS n,
      named_struct(
        'id', x.r1.item.`id`,
        'order_count', x.r1.item.`order_count`,
        'created_at', x.r1.item.`created_at`,
        'referred', x.item
      ) AS item,
      x.cut AS cut
    FROM n3_referred_up2 AS x
  ) AS s
  GROUP BY k0
),
-- heir.first_order: public.orders
n6_first_order AS (
  SELECT
    k0, item, several
  FROM (
    SELECT
      k0,
      item,
      row_number() OVER (PARTITION BY k0 ORDER BY o0 ASC NULLS LAST) AS n,
      count(*) OVER (PARTITION BY k0) > 1 AS several
    FROM (
      SELECT
        `t`.`customer_id` AS k0,
        `t`.`id` AS o0,
        named_struct('id', `t`.`id`) AS item
      FROM public.orders AS t
      WHERE `t`.`customer_id` IS NOT NULL
    ) AS s
  ) AS s
  WHERE n = 1
),
-- heir: its rows
n5_heir_rows AS (
  SELECT
    `t`.`id` AS c0,
    `t`.`referred_by` AS c1,
    `t`.`email` AS c2,
    named_struct('id', `t`.`id`, 'first_order', n6_first_order.item) AS item,
    coalesce(n6_first_order.several, false) AS several
  FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
  LEFT JOIN n6_first_order ON n6_first_order.k0 = `t`.`id`
),
-- heir: level 1
n5_heir_1 AS (
  SELECT
    `p`.`id` AS k0,
    struct(s.*) AS r1,
    named_struct('k0', `p`.`id`) = named_struct('k0', s.c0) AS a1,
    array(named_struct('k0', `p`.`id`), named_struct('k0', s.c0)) AS p1
  FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS p
  JOIN n5_heir_rows AS s ON s.c1 = `p`.`id`
),
-- heir: down to level 2
n5_heir_2 AS (
  SELECT
    c.*,
    CASE WHEN s.c0 IS NOT NULL THEN struct(s.*) END AS r2,
    s.c0 IS NOT NULL AND array_contains(c.p1, named_struct('k0', s.c0)) AS a2,
    CASE WHEN s.c0 IS NOT NULL THEN concat(c.p1, array(named_struct('k0', s.c0))) ELSE c.p1 END AS p2
  FROM n5_heir_1 AS c
  LEFT JOIN n5_heir_rows AS s ON s.c1 = c.r1.c0 AND NOT c.a1
),
-- heir: up from level 2
n5_heir_up2 AS (
  SELECT
    p1,
    any_value(k0) AS k0,
    any_value(r1) AS r1,
    any_value(a1) AS a1,
    any_value(item) FILTER (WHERE there AND n = 1) AS item,
    bool_or(again) AS cut,
    count_if(there) > 1 OR coalesce(bool_or(several) FILTER (WHERE there AND n = 1), false) AS several
  FROM (
    SELECT
      x.p1,
      x.k0,
      x.r1,
      x.a1,
      x.r2 IS NOT NULL AND NOT x.a2 AS there,
      x.a2 AS again,
      row_number() OVER (PARTITION BY x.p1 ORDER BY x.r2 IS NOT NULL AND NOT x.a2 DESC, x.r2.c2 ASC NULLS LAST, x.r2.c0 ASC NULLS LAST) AS n,
      named_struct('id', x.r2.item.`id`, 'first_order', x.r2.item.`first_order`) AS item,
      x.r2.several AS several
    FROM n5_heir_2 AS x
  ) AS s
  GROUP BY p1
),
-- heir: public.customers, 2 levels
n5_heir AS (
  SELECT
    k0,
    any_value(item) FILTER (WHERE there AND n = 1) AS item,
    bool_or(again) OR coalesce(bool_or(cut) FILTER (WHERE there AND n = 1), false) AS cut,
    count_if(there) > 1 OR coalesce(bool_or(several) FILTER (WHERE there AND n = 1), false) AS several
  FROM (
    SELECT
      x.k0,
      x.r1 IS NOT NULL AND NOT x.a1 AS there,
      x.a1 AS again,
      row_number() OVER (PARTITION BY x.k0 ORDER BY x.r1 IS NOT NULL AND NOT x.a1 DESC, x.r1.c2 ASC NULLS LAST, x.r1.c0 ASC NULLS LAST) AS n,
      named_struct('id', x.r1.item.`id`, 'first_order', x.r1.item.`first_order`, 'heir', x.item) AS item,
      x.cut AS cut,
      x.r1.several OR x.several AS several
    FROM n5_heir_up2 AS x
  ) AS s
  GROUP BY k0
),
-- by_tier: its rows
n7_by_tier_rows AS (
  SELECT
    `t`.`id` AS c0,
    `t`.`referred_by` AS c1,
    `t`.`tier` AS c2,
    named_struct('id', `t`.`id`) AS item
  FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
),
-- by_tier: level 1
n7_by_tier_1 AS (
  SELECT
    `p`.`id` AS k0,
    struct(s.*) AS r1,
    named_struct('k0', `p`.`id`) = named_struct('k0', s.c0) AS a1,
    array(named_struct('k0', `p`.`id`), named_struct('k0', s.c0)) AS p1
  FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS p
  JOIN n7_by_tier_rows AS s ON s.c1 = `p`.`id`
),
-- by_tier: down to level 2
n7_by_tier_2 AS (
  SELECT
    c.*,
    CASE WHEN s.c0 IS NOT NULL THEN struct(s.*) END AS r2,
    s.c0 IS NOT NULL AND array_contains(c.p1, named_struct('k0', s.c0)) AS a2,
    CASE WHEN s.c0 IS NOT NULL THEN concat(c.p1, array(named_struct('k0', s.c0))) ELSE c.p1 END AS p2
  FROM n7_by_tier_1 AS c
  LEFT JOIN n7_by_tier_rows AS s ON s.c1 = c.r1.c0 AND NOT c.a1
),
-- by_tier: up from level 2
n7_by_tier_up2 AS (
  SELECT
    p1,
    any_value(k0) AS k0,
    any_value(r1) AS r1,
    any_value(a1) AS a1,
    map_from_entries(transform(array_sort(collect_list(named_struct('n', n, 'name', name, 'item', item)) FILTER (WHERE there AND name IS NOT NULL AND same = 1), (a, b) -> a.n - b.n), e -> struct(e.name, e.item))) AS item,
    bool_or(again) AS cut
  FROM (
    SELECT
      x.p1,
      x.k0,
      x.r1,
      x.a1,
      x.r2 IS NOT NULL AND NOT x.a2 AS there,
      x.a2 AS again,
      row_number() OVER (PARTITION BY x.p1 ORDER BY x.r2 IS NOT NULL AND NOT x.a2 DESC, x.r2.c0 ASC NULLS LAST) AS n,
      named_struct('id', x.r2.item.`id`) AS item,
      x.r2.c2 AS name,
      row_number() OVER (PARTITION BY x.p1, x.r2.c2 ORDER BY x.r2 IS NOT NULL AND NOT x.a2 DESC, x.r2.c0 ASC NULLS LAST) AS same
    FROM n7_by_tier_2 AS x
  ) AS s
  GROUP BY p1
),
-- by_tier: public.customers, 2 levels
n7_by_tier AS (
  SELECT
    k0,
    map_from_entries(transform(array_sort(collect_list(named_struct('n', n, 'name', name, 'item', item)) FILTER (WHERE there AND name IS NOT NULL AND same = 1), (a, b) -> a.n - b.n), e -> struct(e.name, e.item))) AS item,
    bool_or(again) OR coalesce(bool_or(cut) FILTER (WHERE there AND name IS NOT NULL AND same = 1), false) AS cut
  FROM (
    SELECT
      x.k0,
      x.r1 IS NOT NULL AND NOT x.a1 AS there,
      x.a1 AS again,
      row_number() OVER (PARTITION BY x.k0 ORDER BY x.r1 IS NOT NULL AND NOT x.a1 DESC, x.r1.c0 ASC NULLS LAST) AS n,
      named_struct('id', x.r1.item.`id`, 'by_tier', x.item) AS item,
      x.cut AS cut,
      x.r1.c2 AS name,
      row_number() OVER (PARTITION BY x.k0, x.r1.c2 ORDER BY x.r1 IS NOT NULL AND NOT x.a1 DESC, x.r1.c0 ASC NULLS LAST) AS same
    FROM n7_by_tier_up2 AS x
  ) AS s
  GROUP BY k0
)
SELECT
  `t`.`id` AS `id`,
  n1_referrer.item AS `referrer`,
  coalesce(n3_referred.item, array()) AS `referred`,
  n5_heir.item AS `heir`,
  coalesce(n7_by_tier.item, map()) AS `by_tier`,
  coalesce(n5_heir.several, false) AS `_deltasmelt_several`,
  coalesce(n1_referrer.cut, false) OR coalesce(n3_referred.cut, false) OR coalesce(n5_heir.cut, false) OR coalesce(n7_by_tier.cut, false) AS `_deltasmelt_cut`
FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
LEFT JOIN n1_referrer ON n1_referrer.k0 = `t`.`id`
LEFT JOIN n3_referred ON n3_referred.k0 = `t`.`id`
LEFT JOIN n5_heir ON n5_heir.k0 = `t`.`id`
LEFT JOIN n7_by_tier ON n7_by_tier.k0 = `t`.`id`
