CREATE VIEW few_prices AS
SELECT category, count(*) AS n, avg(price) AS mean, min(price) AS low, max(price) AS high
FROM few_products GROUP BY category
