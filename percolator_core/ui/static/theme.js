// Choose the theme of Airflow's own pages, or else the system's, before the page is drawn.
(() => {
  const chosen = localStorage.getItem("theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
