CREATE VIEW prices AS
SELECT category, count(*) AS n, avg(price) AS mean, min(price) AS low, max(price) AS high
FROM products GROUP BY category
