CREATE VIEW shown_orders AS
SELECT o.id, o.amount, c.city FROM orders o JOIN customers c ON o.customer = c.id
