WITH
-- people.tags: public.tags
n2_tags AS (
  SELECT
    k0,
    sort_array(collect_list(named_struct('o0', o0, 'o1', o1, 'o2', o2, 'item', item))).item AS item
  FROM (
    SELECT /*+ REPARTITION(k0) */
      `l`.`customer_id` AS k0,
      `t`.`id` AS o0,
      `l`.`customer_id` AS o1,
      `l`.`tag_id` AS o2,
      `t`.`name` AS item
    FROM public.customer_tags AS l
    JOIN public.tags AS t ON `l`.`tag_id` = `t`.`id`
  ) AS s
  GROUP BY k0
),
-- people: its rows
n1_people_rows AS (
  SELECT
    `t`.`id` AS c0,
    `t`.`country_id` AS c1,
    `t`.`referred_by` AS c2,
    named_struct('id', `t`.`id`, 'tags', coalesce(n2_tags.item, array())) AS item
  FROM public.customers AS t
  LEFT JOIN n2_tags ON n2_tags.k0 = `t`.`id`
),
-- people: level 1
n1_people_1 AS (
  SELECT
    s.c1 AS k0,
    struct(s.*) AS r1,
    false AS a1,
    array(named_struct('k0', s.c0)) AS p1
  FROM n1_people_rows AS s
  WHERE s.c1 IS NOT NULL
),
-- people: down to level 2
n1_people_2 AS (
  SELECT
    c.*,
    CASE WHEN s.c0 IS NOT NULL THEN struct(s.*) END AS r2,
    s.c0 IS NOT NULL AND array_contains(c.p1, named_struct('k0', s.c0)) AS a2,
    CASE WHEN s.c0 IS NOT NULL THEN concat(c.p1, array(named_struct('k0', s.c0))) ELSE c.p1 END AS p2
  FROM n1_people_1 AS c
  LEFT JOIN n1_people_rows AS s ON s.c1 = c.r1.c1 AND s.c2 = c.r1.c0 AND NOT c.a1
),
-- people: down to level 3
n1_people_3 AS (
  SELECT
    c.*,
    CASE WHEN s.c0 IS NOT NULL THEN struct(s.*) END AS r3,
    s.c0 IS NOT NULL AND array_contains(c.p2, named_struct('k0', s.c0)) AS a3,
    CASE WHEN s.c0 IS NOT NULL THEN concat(c.p2, array(named_struct('k0', s.c0))) ELSE c.p2 END AS p3
  FROM n1_people_2 AS c
  LEFT JOIN n1_people_rows AS s ON s.c1 = c.r2.c1 AND s.c2 = c.r2.c0 AND NOT c.a2
),
-- people: up from level 3
n1_people_up3 AS (
  SELECT
    p2,
    any_value(k0) AS k0,
    any_value(r1) AS r1,
    any_value(a1) AS a1,
    any_value(p1) AS p1,
    any_value(r2) AS r2,
    any_value(a2) AS a2,
    named_struct(
      'items', sort_array(collect_list(named_struct('n', n, 'item', item)) FILTER (WHERE there AND n <= 2)).item,
      'count', count(*) FILTER (WHERE there),
      'truncated', count(*) FILTER (WHERE there) > 2
    ) AS item,
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
      named_struct('id', x.r3.item.`id`, 'tags', x.r3.item.`tags`) AS item
    FROM n1_people_3 AS x
  ) AS s
  GROUP BY p2
),
-- people: up from level 2
n1_people_up2 AS (
  SELECT
    p1,
    any_value(k0) AS k0,
    any_value(r1) AS r1,
    any_value(a1) AS a1,
    named_struct(
      'items', sort_array(collect_list(named_struct('n', n, 'item', item)) FILTER (WHERE there AND n <= 2)).item,
      'count', count(*) FILTER (WHERE there),
      'truncated', count(*) FILTER (WHERE there) > 2
    ) AS item,
    bool_or(again) OR coalesce(bool_or(cut) FILTER (WHERE there), false) AS cut
  FROM (
    SELECT
      x.p1,
      x.k0,
      x.r1,
      x.a1,
      x.r2 IS NOT NULL AND NOT x.a2 AS there,
      x.a2 AS again,
      row_number() OVER (PARTITION BY x.p1 ORDER BY x.r2 IS NOT NULL AND NOT x.a2 DESC, x.r2.c0 ASC NULLS LAST) AS n,
      named_struct('id', x.r2.item.`id`, 'tags', x.r2.item.`tags`, 'people', x.item) AS item,
      x.cut AS cut
    FROM n1_people_up3 AS x
  ) AS s
  GROUP BY p1
),
-- people: public.customers, 3 levels
n1_people AS (
  SELECT
    k0,
    named_struct(
      'items', sort_array(collect_list(named_struct('n', n, 'item', item)) FILTER (WHERE there AND n <= 2)).item,
      'count', count(*) FILTER (WHERE there),
      'truncated', count(*) FILTER (WHERE there) > 2
    ) AS item,
    bool_or(again) OR coalesce(bool_or(cut) FILTER (WHERE there), false) AS cut
  FROM (
    SELECT
      x.k0,
      x.r1 IS NOT NULL AND NOT x.a1 AS there,
      x.a1 AS again,
      row_number() OVER (PARTITION BY x.k0 ORDER BY x.r1 IS NOT NULL AND NOT x.a1 DESC, x.r1.c0 ASC NULLS LAST) AS n,
      named_struct('id', x.r1.item.`id`, 'tags', x.r1.item.`tags`, 'people', x.item) AS item,
      x.cut AS cut
    FROM n1_people_up2 AS x
  ) AS s
  GROUP BY k0
),
-- neighbours.someone.referrer: its rows
n5_referrer_rows AS (
  SELECT
    `t`.`id` AS c0,
    `t`.`referred_by` AS c1,
    named_struct('id', `t`.`id`) AS item
  FROM public.customers AS t
),
-- neighbours.someone.referrer: level 1
n5_referrer_1 AS (
  SELECT
    `p`.`id` AS k0,
    struct(s.*) AS r1,
    named_struct('k0', `p`.`id`) = named_struct('k0', s.c0) AS a1,
    array(named_struct('k0', `p`.`id`), named_struct('k0', s.c0)) AS p1
  FROM public.customers AS p
  JOIN n5_referrer_rows AS s ON s.c0 = `p`.`referred_by`
),
-- neighbours.someone.referrer: down to level 2
n5_referrer_2 AS (
  SELECT
    c.*,
    CASE WHEN s.c0 IS NOT NULL THEN struct(s.*) END AS r2,
    s.c0 IS NOT NULL AND array_contains(c.p1, named_struct('k0', s.c0)) AS a2,
    CASE WHEN s.c0 IS NOT NULL THEN concat(c.p1, array(named_struct('k0', s.c0))) ELSE c.p1 END AS p2
  FROM n5_referrer_1 AS c
  LEFT JOIN n5_referrer_rows AS s ON s.c0 = c.r1.c1 AND NOT c.a1
),
-- neighbours.someone.referrer: up from level 2
n5_referrer_up2 AS (
  SELECT
    p1,
    any_value(k0) AS k0,
    any_value(r1) AS r1,
    any_value(a1) AS a1,
    any_value(item) FILTER (WHERE there AND n = 1) AS item,
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
      named_struct('id', x.r2.item.`id`) AS item
    FROM n5_referrer_2 AS x
  ) AS s
  GROUP BY p1
),
-- neighbours.someone.referrer: public.customers, 2 levels
n5_referrer AS (
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
      named_struct('id', x.r1.item.`id`, 'referrer', x.item) AS item,
      x.cut AS cut
    FROM n5_referrer_up2 AS x
  ) AS s
  GROUP BY k0
),
-- neighbours.someone: public.customers
n4_someone AS (
  SELECT
    k0, item, cut, several
  FROM (
    SELECT
      k0,
      item,
      row_number() OVER (PARTITION BY k0 ORDER BY o0 ASC NULLS LAST) AS n,
      cut AS cut,
      count(*) OVER (PARTITION BY k0) > 1 AS several
    FROM (
      SELECT
        `t`.`billing_id` AS k0,
        `t`.`id` AS o0,
        named_struct('id', `t`.`id`, 'referrer', n5_referrer.item) AS item,
        coalesce(n5_referrer.cut, false) AS cut
      FROM public.customers AS t
      LEFT JOIN n5_referrer ON n5_referrer.k0 = `t`.`id`
      WHERE `t`.`billing_id` IS NOT NULL
    ) AS s
  ) AS s
  WHERE n = 1
),
-- neighbours: its rows
n3_neighbours_rows AS (
  SELECT
    `t`.`id` AS c0,
    `t`.`country_id` AS c1,
    named_struct('city', `t`.`city`, 'someone', n4_someone.item) AS item,
    coalesce(n4_someone.several, false) AS several,
    coalesce(n4_someone.cut, false) AS cut
  FROM public.addresses AS t
  LEFT JOIN n4_someone ON n4_someone.k0 = `t`.`id`
),
-- neighbours: level 1
n3_neighbours_1 AS (
  SELECT
    s.c1 AS k0,
    struct(s.*) AS r1,
    false AS a1,
    array(named_struct('k0', s.c0)) AS p1
  FROM n3_neighbours_rows AS s
  WHERE s.c1 IS NOT NULL
),
-- neighbours: down to level 2
n3_neighbours_2 AS (
  SELECT
    c.*,
    CASE WHEN s.c0 IS NOT NULL THEN struct(s.*) END AS r2,
    s.c0 IS NOT NULL AND array_contains(c.p1, named_struct('k0', s.c0)) AS a2,
    CASE WHEN s.c0 IS NOT NULL THEN concat(c.p1, array(named_struct('k0', s.c0))) ELSE c.p1 END AS p2
  FROM n3_neighbours_1 AS c
  LEFT JOIN n3_neighbours_rows AS s ON s.c1 = c.r1.c1 AND NOT c.a1
),
-- neighbours: up from level 2
n3_neighbours_up2 AS (
  SELECT
    p1,
    any_value(k0) AS k0,
    any_value(r1) AS r1,
    any_value(a1) AS a1,
    sort_array(collect_list(named_struct('n', n, 'item', item)) FILTER (WHERE there)).item AS item,
    bool_or(again) OR coalesce(bool_or(cut) FILTER (WHERE there), false) AS cut,
    coalesce(bool_or(several) FILTER (WHERE there), false) AS several
  FROM (
    SELECT
      x.p1,
      x.k0,
      x.r1,
      x.a1,
      x.r2 IS NOT NULL AND NOT x.a2 AS there,
      x.a2 AS again,
      row_number() OVER (PARTITION BY x.p1 ORDER BY x.r2 IS NOT NULL AND NOT x.a2 DESC, x.r2.c0 ASC NULLS LAST) AS n,
      named_struct('city', x.r2.item.`city`, 'someone', x.r2.item.`someone`) AS item,
      x.r2.cut AS cut,
      x.r2.several AS several
    FROM n3_neighbours_2 AS x
  ) AS s
  GROUP BY p1
),
-- neighbours: public.addresses, 2 levels
n3_neighbours AS (
  SELECT
    k0,
    sort_array(collect_list(named_struct('n', n, 'item', item)) FILTER (WHERE there)).item AS item,
    bool_or(again) OR coalesce(bool_or(cut) FILTER (WHERE there), false) AS cut,
    coalesce(bool_or(several) FILTER (WHERE there), false) AS several
  FROM (
    SELECT
      x.k0,
      x.r1 IS NOT NULL AND NOT x.a1 AS there,
      x.a1 AS again,
      row_number() OVER (PARTITION BY x.k0 ORDER BY x.r1 IS NOT NULL AND NOT x.a1 DESC, x.r1.c0 ASC NULLS LAST) AS n,
      named_struct('city', x.r1.item.`city`, 'someone', x.r1.item.`someone`, 'neighbours', x.item) AS item,
      x.r1.cut OR x.cut AS cut,
      x.r1.several OR x.several AS several
    FROM n3_neighbours_up2 AS x
  ) AS s
  GROUP BY k0
)
SELECT
  `t`.`id` AS `id`,
  coalesce(n1_people.item, named_struct('items', array(), 'count', 0L, 'truncated', false)) AS `people`,
  coalesce(n3_neighbours.item, array()) AS `neighbours`,
  coalesce(n3_neighbours.several, false) AS `_deltasmelt_several`,
  coalesce(n1_people.cut, false) OR coalesce(n3_neighbours.cut, false) AS `_deltasmelt_cut`
FROM public.countries AS t
LEFT JOIN n1_people ON n1_people.k0 = `t`.`id`
LEFT JOIN n3_neighbours ON n3_neighbours.k0 = `t`.`id`
